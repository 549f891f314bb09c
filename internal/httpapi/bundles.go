package httpapi

import (
	"net/http"

	"countersign/internal/service"
)

const (
	sharePath    = "/public/shares/"
	sharePattern = sharePath + "{share}"
)

func getBundle(x *exchange) error {
	q := x.parameters("payloads")
	payloads := q.boolean("payloads")
	if err := q.err(); err != nil {
		return err
	}
	id, err := x.namedReceipt()
	if err != nil {
		return err
	}
	body, err := x.api.service.Bundle(x.r.Context(), x.caller, id, payloads)
	if err != nil {
		return err
	}
	x.bundle(body)
	return nil
}

func openShare(x *exchange) error {
	body, err := x.api.service.OpenShare(x.r.Context(), x.r.PathValue("share"))
	if err != nil {
		return err
	}
	x.bundle(body)
	return nil
}

// bundle answers with a bundle as a file to download.
func (x *exchange) bundle(body []byte) {
	x.w.Header().Set("Content-Disposition", `attachment; filename="countersign.bundle"`)
	x.write(http.StatusOK, service.BundleType, body)
}
