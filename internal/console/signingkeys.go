package console

import (
	"context"
	"encoding/base64"
	"net/http"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// signingKeysView is the page of the keys that sign decisions.
type signingKeysView struct {
	Keys []signingKeyRow
	// New and Old are the forms for a new and for an older key as they were sent, if one was refused.
	New, Old askedSigningKey
	Refusal  *refusal
}

type askedSigningKey struct{ Name, Public string }

type signingKeyRow struct {
	*service.SigningKey
	PublicKey string // base64
	Signs     bool
	Revocable bool
	// Confirmable says that the key is historical, Confirmed that an admin has confirmed it.
	Confirmable, Confirmed bool
}

func showSigningKeys(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	return v.showSigningKeys(http.StatusOK, caller, &signingKeysView{})
}

func (v *visit) showSigningKeys(status int, caller *service.Caller, page *signingKeysView) error {
	keys, err := v.console.service.SigningKeys(v.r.Context(), caller)
	if err != nil {
		return err
	}
	for _, key := range keys {
		page.Keys = append(page.Keys, signingKeyRow{
			SigningKey: key, PublicKey: base64.StdEncoding.EncodeToString(key.Public),
			Signs: key.Status == ledger.SigningActive, Revocable: key.Status != ledger.SigningRevoked,
			Confirmable: key.Status == ledger.SigningHistorical, Confirmed: key.Status == ledger.SigningConfirmed,
		})
	}
	return v.show(status, "signing-keys.html", "Signing keys", page)
}

func createSigningKey(v *visit) error {
	return v.addSigningKey(func(sent form) map[string]any {
		return map[string]any{"name": optional(sent.text("name"))}
	})
}

// importSigningKey imports the public key of a key pair that signed before the registry existed. The
// member is sent even if it is empty, because a request without it would create a new key.
func importSigningKey(v *visit) error {
	return v.addSigningKey(func(sent form) map[string]any {
		return map[string]any{"name": optional(sent.text("name")), "public_key": sent.text("public_key")}
	})
}

func (v *visit) addSigningKey(members func(form) map[string]any) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxForm)
	if err != nil {
		return err
	}
	err = v.takeSigningKey(caller, members(sent))
	if why := refusalOf(err); why != nil {
		page, asked := &signingKeysView{Refusal: why}, askedSigningKey{sent.text("name"), sent.text("public_key")}
		if sent.values.Has("public_key") {
			page.Old = asked
		} else {
			page.New = asked
		}
		return v.showSigningKeys(why.Status, caller, page)
	}
	if err != nil {
		return err
	}
	v.seeOther("/signing-keys")
	return nil
}

func (v *visit) takeSigningKey(caller *service.Caller, members map[string]any) error {
	body, err := request(members)
	if err != nil {
		return err
	}
	wanted, err := service.ParseSigningKeyRequest(body)
	if err != nil {
		return err
	}
	_, err = v.console.service.CreateSigningKey(v.r.Context(), caller, wanted)
	return err
}

func retireSigningKey(v *visit) error { return v.moveSigningKey(v.console.service.RetireSigningKey) }

func revokeSigningKey(v *visit) error { return v.moveSigningKey(v.console.service.RevokeSigningKey) }

func confirmSigningKey(v *visit) error { return v.moveSigningKey(v.console.service.ConfirmSigningKey) }

func retractSigningKey(v *visit) error { return v.moveSigningKey(v.console.service.RetractSigningKey) }

// moveSigningKey changes the status of the key that the path names.
func (v *visit) moveSigningKey(move func(context.Context, *service.Caller, ledger.SigningKeyID) (*service.SigningKey, error)) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.pathID("key_id")
	if err != nil {
		return err
	}
	_, err = move(v.r.Context(), caller, ledger.SigningKeyID{UUID: id})
	if why := refusalOf(err); why != nil {
		return v.showSigningKeys(why.Status, caller, &signingKeysView{Refusal: why})
	}
	if err != nil {
		return err
	}
	v.seeOther("/signing-keys")
	return nil
}
