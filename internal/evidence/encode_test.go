package evidence

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Changing any member of a record changes its encoded bytes, except for the members named here. A
// member that is added to a record but not to its encoding fails this test.
func TestEncodingsCoverTheirRecords(t *testing.T) {
	t.Parallel()
	once := ledger.Time(1)
	check(t, encodeKey, &ledger.KeyRecord{RevokedAt: &once, ExpiresAt: &once, Previous: &ledger.PreviousSecret{}, Agents: []string{"a"}}, "LastUsedAt", "Tampered")
	check(t, encodeRotation, &store.RotationRecord{})
	check(t, encodeSignIn, &store.SignIn{})
	check(t, encodeWebhook, &store.WebhookRecord{Events: []string{"a"}}, "Tampered")
	check(t, encodePolicy, &store.PolicyRecord{}, "Tampered")
	check(t, encodeToken, &store.TokenRecord{}, "LastUsedAt", "Tampered")
	check(t, encodeSigningKey, &store.SigningKeyRecord{}, "Tampered")
	check(t, encodeAnchor, &store.AnchorRecord{}, "Tampered")
	check(t, encodeFinding, &store.FindingRecord{}, "Tampered")
	check(t, encodeFullCheck, &store.FullCheckRecord{}, "Tampered")
	check(t, encodeImported, &store.ImportedApproval{}, "Tampered")
	check(t, encodeTransparencyLog, &store.TransparencyLog{}, "Tampered")
	check(t, encodeDelivery, &store.DeliveryRecord{}, "Tampered")
	check(t, encodeLedger, &store.LedgerRecord{})
	check(t, encodeJob, &store.Job{}, "Once", "RunAt", "No", "Lease", "LeasedUntil", "Attempts")
}

// A key that names nobody is encoded as before keys could: rows of earlier versions keep their
// authenticators. Naming somebody changes the encoding in a way that nothing else can.
func TestKeysThatNameNobodyKeepTheirEncoding(t *testing.T) {
	t.Parallel()
	plain := encodeKey(&ledger.KeyRecord{})
	act := func(number uint64) []byte { return binary.BigEndian.AppendUint64(slices.Clone(plain), number) }
	for _, test := range []struct {
		key  ledger.KeyRecord
		want []byte
	}{
		{ledger.KeyRecord{Act: 7}, act(7)},
		{ledger.KeyRecord{Act: 7, SignInAs: "me"}, append(act(7), 2, 'm', 'e')},
		{ledger.KeyRecord{SignInAs: "me"}, append(act(0), 2, 'm', 'e')},
		{ledger.KeyRecord{Act: 7, SlackMember: "T/U"}, append(act(7), 0, 3, 'T', '/', 'U')},
		{ledger.KeyRecord{SignInAs: "me", SlackMember: "T/U"}, append(act(0), 2, 'm', 'e', 3, 'T', '/', 'U')},
	} {
		if got := encodeKey(&test.key); !bytes.Equal(got, test.want) {
			t.Errorf("act %d, %q, %q: encoded as %x, want %x", test.key.Act, test.key.SignInAs, test.key.SlackMember, got, test.want)
		}
	}
}

// The same holds for a session of nobody whom single sign-on has proven, and for a link.
func TestSignInsWithoutAnIdentityKeepTheirEncoding(t *testing.T) {
	t.Parallel()
	plain := encodeSignIn(&store.SignIn{})
	act := func(number uint64) []byte { return binary.BigEndian.AppendUint64(slices.Clone(plain), number) }
	for _, test := range []struct {
		in   store.SignIn
		want []byte
	}{
		{store.SignIn{Act: 7}, act(7)},
		{store.SignIn{Act: 7, SignInAs: "me"}, append(act(7), 2, 'm', 'e')},
		{store.SignIn{SignInAs: "me"}, append(act(0), 2, 'm', 'e')},
	} {
		if got := encodeSignIn(&test.in); !bytes.Equal(got, test.want) {
			t.Errorf("act %d, %q: encoded as %x, want %x", test.in.Act, test.in.SignInAs, got, test.want)
		}
	}
}

// A span is encoded as its number of milliseconds, as it is stored: rows of earlier versions keep
// their authenticators.
func TestSpansAreEncodedInMilliseconds(t *testing.T) {
	t.Parallel()
	const span = 0x1234
	want := binary.BigEndian.AppendUint64(nil, span)
	rotation := encodeRotation(&store.RotationRecord{Overlap: span * time.Millisecond})
	if got := rotation[len(rotation)-16:][:8]; !bytes.Equal(got, want) {
		t.Errorf("the overlap of a rotation is encoded as %x, want %x", got, want)
	}
	delivery := encodeDelivery(&store.DeliveryRecord{Duration: span * time.Millisecond})
	if got := delivery[len(delivery)-9:][:8]; !bytes.Equal(got, want) {
		t.Errorf("the duration of a delivery is encoded as %x, want %x", got, want)
	}
}

func check[R any](t *testing.T, encode func(*R) []byte, sample *R, idle ...string) {
	t.Helper()
	idle = append(idle, "MAC")
	kind := reflect.TypeFor[R]()
	seen := map[string]string{string(encode(sample)): "nothing changed"}
	for i := range kind.NumField() {
		for name, changed := range changes(reflect.ValueOf(sample).Elem(), i) {
			record := changed.Interface().(R)
			bytes := string(encode(&record))
			name = kind.Name() + "." + kind.Field(i).Name + " " + name
			if before, same := seen[bytes]; same != slices.Contains(idle, kind.Field(i).Name) {
				t.Errorf("%s: encoded like %s: %t", name, before, same)
			}
			if !slices.Contains(idle, kind.Field(i).Name) {
				seen[bytes] = name
			}
		}
	}
}

// changes returns copies of a record, each with one member changed, recursively.
func changes(record reflect.Value, field int) map[string]reflect.Value {
	all := make(map[string]reflect.Value)
	for name, value := range others(record.Field(field)) {
		changed := reflect.New(record.Type()).Elem()
		changed.Set(record)
		changed.Field(field).Set(value)
		all[name] = changed
	}
	return all
}

// others returns values that differ from v.
func others(v reflect.Value) map[string]reflect.Value {
	one := reflect.New(v.Type()).Elem()
	one.Set(v)
	switch v.Kind() {
	case reflect.String:
		one.SetString(v.String() + "x")
	case reflect.Int, reflect.Int64:
		least := int64(1)
		if v.Type() == reflect.TypeFor[time.Duration]() {
			least = int64(time.Millisecond) // spans are stored in milliseconds
		}
		one.SetInt(v.Int() + least)
	case reflect.Bool:
		one.SetBool(!v.Bool())
	case reflect.Array:
		one.Index(one.Len() - 1).SetUint(v.Index(v.Len()-1).Uint() + 1)
	case reflect.Slice:
		return map[string]reflect.Value{
			"longer": reflect.Append(v, reflect.Zero(v.Type().Elem())), "much longer": reflect.AppendSlice(v, reflect.MakeSlice(v.Type(), 9, 9)),
		}
	case reflect.Struct:
		all := make(map[string]reflect.Value)
		for i := range v.NumField() {
			for name, changed := range changes(v, i) {
				all[v.Type().Field(i).Name+" "+name] = changed
			}
		}
		return all
	case reflect.Pointer:
		if v.IsNil() {
			one.Set(reflect.New(v.Type().Elem()))
			return map[string]reflect.Value{"filled": one}
		}
		all := map[string]reflect.Value{"emptied": reflect.Zero(v.Type())}
		for name, changed := range others(v.Elem()) {
			pointer := reflect.New(v.Type().Elem())
			pointer.Elem().Set(changed)
			all[name] = pointer
		}
		return all
	default:
		panic("unsupported kind of member: " + v.Kind().String())
	}
	return map[string]reflect.Value{"changed": one}
}
