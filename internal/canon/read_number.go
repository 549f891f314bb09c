package canon

import "strconv"

const (
	// maxDigits is the most significant digits that a double's shortest decimal
	// has. A literal with more can never be one.
	maxDigits = 17
	// sureDigits is the most for which every decimal survives the way through a
	// double, so that nothing needs checking.
	sureDigits = 15
	// surePower is the highest power of ten that is itself a double.
	surePower = 22
	// maxExponent is beyond all doubles in both directions, whatever the digits.
	maxExponent = 400
	// exponentCap is beyond the length of any text, so that no run of zeros
	// outweighs an exponent that was capped, and far from overflow.
	exponentCap = 1 << 48
)

var powersOfTen = [surePower + 1]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// decimal is the number digits × 10^exponent. After finish the digits end in
// no zero, so that equal numbers are equal decimals.
type decimal struct {
	digits   uint64
	exponent int64
	count    int // of significant digits, also of those that digits has no room for
	zeros    int // read, but not yet known to be followed by another digit
}

func (d *decimal) push(digit byte) {
	if digit == '0' {
		if d.count > 0 {
			d.zeros++
		}
		return
	}
	d.count += d.zeros + 1
	if d.count <= maxDigits {
		for range d.zeros {
			d.digits *= 10
		}
		d.digits = d.digits*10 + uint64(digit-'0')
	}
	d.zeros = 0
}

func (d *decimal) finish() {
	d.exponent += int64(d.zeros)
	d.zeros = 0
	if d.count == 0 {
		d.exponent = 0
	}
}

// scanDecimal reads the unsigned number at text[i:] and returns where it ends.
// It is linear in the literal's length, and everything after it is constant.
func scanDecimal(text string, i int) (d decimal, end int, ok bool) {
	start := i
	for i < len(text) && isDigit(text[i]) {
		d.push(text[i])
		i++
	}
	if i == start || (text[start] == '0' && i > start+1) {
		return d, i, false
	}
	if i < len(text) && text[i] == '.' {
		i++
		start = i
		for i < len(text) && isDigit(text[i]) {
			d.push(text[i])
			i++
		}
		if i == start {
			return d, i, false
		}
		d.exponent = -int64(i - start)
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		var exponent int64
		if exponent, i, ok = scanExponent(text, i+1); !ok {
			return d, i, false
		}
		d.exponent += exponent
	}
	d.finish()
	return d, i, true
}

func scanExponent(text string, i int) (exponent int64, end int, ok bool) {
	negative := false
	if i < len(text) && (text[i] == '+' || text[i] == '-') {
		negative = text[i] == '-'
		i++
	}
	start := i
	for ; i < len(text) && isDigit(text[i]); i++ {
		exponent = min(exponent*10+int64(text[i]-'0'), exponentCap)
	}
	if negative {
		exponent = -exponent
	}
	return exponent, i, i > start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (r *reader) number() (float64, *Error) {
	start := r.pos
	negative := r.take('-')
	d, end, ok := scanDecimal(r.text, r.pos)
	r.pos = end
	if !ok {
		return 0, r.fault(reasonNumeral)
	}
	f, exact := d.float()
	if !exact && !r.anyNumber {
		return 0, &Error{Offset: start, Reason: reasonInexact, WellFormed: true}
	}
	if negative {
		f = -f
	}
	return positiveZero(f), nil
}

// float returns the double nearest to d, and whether its shortest decimal is
// d again: only then does writing it back say what was sent.
func (d decimal) float() (f float64, exact bool) {
	if d.count <= sureDigits && -surePower <= d.exponent && d.exponent <= surePower {
		// Both operands are exact, so the one rounding is the right one.
		if d.exponent < 0 {
			return float64(d.digits) / powersOfTen[-d.exponent], true
		}
		return float64(d.digits) * powersOfTen[d.exponent], true
	}
	if d.count > maxDigits || d.exponent < -maxExponent || d.exponent > maxExponent {
		return 0, false
	}
	var space [32]byte
	text := strconv.AppendUint(space[:0], d.digits, 10)
	text = append(text, 'e')
	text = strconv.AppendInt(text, d.exponent, 10)
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, false
	}
	shortest, _, _ := scanDecimal(string(strconv.AppendFloat(space[:0], f, 'e', -1, 64)), 0)
	return f, shortest == d
}
