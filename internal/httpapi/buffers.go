package httpapi

import "sync"

// buffers are for the most frequent responses.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, 4<<10)) }}

// maxBuffer bounds the buffers that are kept, in bytes.
const maxBuffer = 16 << 10

// answerBuffered sends a JSON response that build appends to a buffer. The buffer is used again, so
// build must not keep it.
func answerBuffered(x *exchange, status int, build func(dst []byte) []byte) error {
	buffer := buffers.Get().(*[]byte) //nolint:forcetypeassert // nothing else is put into it
	body := build((*buffer)[:0])
	err := x.answer(status, body)
	if cap(body) <= maxBuffer {
		*buffer = body
		buffers.Put(buffer)
	}
	return err
}
