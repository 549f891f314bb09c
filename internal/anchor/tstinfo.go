package anchor

import (
	"crypto"
	encoding "encoding/asn1"
	"errors"
	"math/big"
	"time"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// timestampInfo is the relevant part of TSTInfo of RFC 3161, 2.4.2.
type timestampInfo struct {
	policy  encoding.ObjectIdentifier
	hash    crypto.Hash
	imprint []byte
	serial  *big.Int
	time    time.Time
	// accuracy is by how much the authority's clock may be wrong; 0 if the token does not say.
	accuracy time.Duration
	nonce    *big.Int
}

var errTimestampInfo = errors.New("the content is not a timestamp of version 1")

func parseTimestampInfo(content []byte) (*timestampInfo, error) {
	info := &timestampInfo{serial: new(big.Int)}
	input := cryptobyte.String(content)
	var body, imprint, sum, generated cryptobyte.String
	if !input.ReadASN1(&body, asn1.SEQUENCE) || !input.Empty() || !readVersion(&body, 1) ||
		!body.ReadASN1ObjectIdentifier(&info.policy) || !body.ReadASN1(&imprint, asn1.SEQUENCE) ||
		!body.ReadASN1Integer(info.serial) || !body.ReadASN1(&generated, asn1.GeneralizedTime) {
		return nil, errTimestampInfo
	}
	// An unsupported hash stays 0, which never matches the requested one.
	info.hash, _ = readDigest(&imprint)
	if info.hash != 0 && (!imprint.ReadASN1(&sum, asn1.OCTET_STRING) || !imprint.Empty()) {
		return nil, errTimestampInfo
	}
	info.imprint = sum
	var err error
	// A fraction of a second is accepted although the layout has none.
	if info.time, err = time.Parse("20060102150405Z", string(generated)); err != nil {
		return nil, errTimestampInfo
	}
	if err := info.readOptions(body); err != nil {
		return nil, err
	}
	return info, nil
}

// readOptions reads what may follow the time: accuracy, ordering, nonce, the authority's name and
// extensions.
func (i *timestampInfo) readOptions(body cryptobyte.String) error {
	var accuracy, extensions cryptobyte.String
	var stated bool
	if !body.ReadOptionalASN1(&accuracy, &stated, asn1.SEQUENCE) || !body.SkipOptionalASN1(asn1.BOOLEAN) {
		return errTimestampInfo
	}
	if stated {
		var ok bool
		if i.accuracy, ok = readAccuracy(accuracy); !ok {
			return errTimestampInfo
		}
	}
	if body.PeekASN1Tag(asn1.INTEGER) {
		i.nonce = new(big.Int)
		if !body.ReadASN1Integer(i.nonce) {
			return errTimestampInfo
		}
	}
	if !body.SkipOptionalASN1(tag0) || !body.ReadOptionalASN1(&extensions, nil, tag1) || !body.Empty() {
		return errTimestampInfo
	}
	for !extensions.Empty() {
		var extension cryptobyte.String
		var critical bool
		if !extensions.ReadASN1(&extension, asn1.SEQUENCE) || !extension.SkipASN1(asn1.OBJECT_IDENTIFIER) {
			return errTimestampInfo
		}
		if extension.PeekASN1Tag(asn1.BOOLEAN) && !extension.ReadASN1Boolean(&critical) {
			return errTimestampInfo
		}
		if critical {
			return errors.New("the timestamp has an unsupported critical extension")
		}
	}
	return nil
}

// readAccuracy reads an accuracy: seconds, milliseconds and microseconds, each optional. Out of range
// means only that it cannot be represented: authorities are not all strict.
func readAccuracy(parts cryptobyte.String) (sum time.Duration, ok bool) {
	const most = 1 << 32 // seconds, which is more than a century
	for _, part := range []struct {
		tag  asn1.Tag
		unit time.Duration
	}{{asn1.INTEGER, time.Second}, {asn1.Tag(0).ContextSpecific(), time.Millisecond}, {asn1.Tag(1).ContextSpecific(), time.Microsecond}} {
		if !parts.PeekASN1Tag(part.tag) {
			continue
		}
		var count int64
		if !parts.ReadASN1Int64WithTag(&count, part.tag) || count < 0 || count > most {
			return 0, false
		}
		sum += time.Duration(count) * part.unit
	}
	return sum, parts.Empty()
}
