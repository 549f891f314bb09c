package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/canon"
)

// Codes of JSON-RPC errors.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeInvalidParams  = -32602
	codeInternal       = -32603
)

// The methods of MCP that the gateway knows.
const (
	methodInitialize = "initialize"
	methodCallTool   = "tools/call"
	methodCancelled  = "notifications/cancelled"
	methodProgress   = "notifications/progress"
)

// message is a JSON-RPC message.
type message struct {
	text   []byte // as it was received, without the line break
	value  canon.Value
	id     string // the id in canonical JSON; empty for a notification
	method string // empty for a response
}

// rpcError is an error that answers a request.
type rpcError struct {
	code int
	text string
}

func (e *rpcError) Error() string { return e.text }

func refuse(code int, format string, args ...any) error {
	return &rpcError{code, fmt.Sprintf(format, args...)}
}

// members are the names that JSON-RPC gives to the members of a message.
var members = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// parse reads a message that all parsers must read alike. Otherwise a server could find a tool call
// where the gateway saw none, or another one: a name that occurs twice is an error, and so is one that
// differs from a known name only in case, which some servers take for it.
func parse(text []byte) (*message, error) {
	m := &message{text: text}
	var err error
	if m.value, err = canon.Parse(text); err != nil {
		return m, refuse(codeParse, "the message cannot be read: %v", err)
	}
	if m.value.Kind() == canon.Array {
		return m, refuse(codeInvalidRequest, "the gateway takes no batches: send each message by itself")
	}
	if m.value.Kind() != canon.Object {
		return m, refuse(codeInvalidRequest, "the message is not an object")
	}
	if id, ok := m.value.Get("id"); ok && !id.IsNull() {
		if id.Kind() != canon.String && id.Kind() != canon.Number {
			return m, refuse(codeInvalidRequest, "the id of the message is not a text or a number")
		}
		m.id = string(id.Bytes())
	}
	if err := checkNames(m.value, members...); err != nil {
		return m, refuse(codeInvalidRequest, "the message %v", err)
	}
	if method, ok := m.value.Get("method"); ok {
		if method.Kind() != canon.String || method.Str() == "" {
			return m, refuse(codeInvalidRequest, "the method of the message is not a text")
		}
		m.method = method.Str()
	}
	return m, nil
}

// requestID returns the id of a request that is refused, in canonical JSON, or an empty text if there is
// none. It reads what parse does not take, since otherwise the client would not know which of its requests
// it was. The id of a response is the server's, and not one that the client waits for.
func requestID(text []byte) string {
	var request struct {
		ID     json.RawMessage `json:"id"`
		Method json.RawMessage `json:"method"`
	}
	if json.Unmarshal(text, &request) != nil || request.Method == nil {
		return ""
	}
	id, err := canon.Parse(request.ID)
	if err != nil || id.Kind() != canon.String && id.Kind() != canon.Number {
		return ""
	}
	return string(id.Bytes())
}

// checkNames fails if a member's name differs from one of names only in case.
func checkNames(object canon.Value, names ...string) error {
	for _, member := range object.Members() {
		for _, name := range names {
			if member.Name != name && strings.EqualFold(member.Name, name) {
				return fmt.Errorf("has a member %q, which could be taken for %q", member.Name, name)
			}
		}
	}
	return nil
}

// toolCall is what a request asks for.
type toolCall struct {
	tool    string
	client  party       // in a shared session; otherwise the session knows it
	payload canon.Value // an object: the arguments, and what the client answers to the tool's questions
	token   canon.Value // of the progress that the client wants to be told; null without one
}

// toolCallOf reads a tools/call request.
func toolCallOf(m *message) (*toolCall, error) {
	if m.id == "" {
		return nil, refuse(codeInvalidRequest, "a tool call without an id cannot be answered, so it is not carried out")
	}
	params, _ := m.value.Get("params")
	if params.Kind() != canon.Object {
		return nil, refuse(codeInvalidParams, "the params of a tool call are not an object")
	}
	if err := checkNames(params, "name", "arguments", inputResponses); err != nil {
		return nil, refuse(codeInvalidParams, "the params object %v", err)
	}
	name, _ := params.Get("name")
	if name.Kind() != canon.String || name.Str() == "" {
		return nil, refuse(codeInvalidParams, "the name of the tool is missing")
	}
	payload, err := payloadOf(params)
	if err != nil {
		return nil, err
	}
	call := &toolCall{tool: name.Str(), payload: payload}
	if token, ok := params.At("/_meta/progressToken"); ok {
		call.token = token
	}
	return call, nil
}

// inputResponses is the member of a call in which a client answers what the tool has asked it: the call is
// repeated with the answers, which decide what is done as much as the arguments.
const inputResponses = "inputResponses"

// payloadOf returns what a call is decided by.
func payloadOf(params canon.Value) (canon.Value, error) {
	arguments, _ := params.Get("arguments")
	if arguments.IsNull() {
		arguments, _ = canon.ObjectValue()
	}
	if arguments.Kind() != canon.Object {
		return canon.Value{}, refuse(codeInvalidParams, "the arguments of a tool call are not an object")
	}
	responses, _ := params.Get(inputResponses)
	if responses.IsNull() {
		return arguments, nil
	}
	payload, err := canon.ObjectValue(append(slices.Clone(arguments.Members()), canon.Member{Name: inputResponses, Value: responses})...)
	if err != nil {
		return canon.Value{}, refuse(codeInvalidParams, "the arguments of the tool call have a member %q, which cannot be told from the client's answers", inputResponses)
	}
	return payload, nil
}

// cancelledID returns the id, in canonical JSON, of the request that a notification cancels.
func cancelledID(m *message) string {
	if id, ok := m.value.At("/params/requestId"); ok {
		return string(id.Bytes())
	}
	return ""
}

// errorMessage answers a request with an error. An empty id stands for one that could not be read.
func errorMessage(id string, err error) []byte {
	code := codeInternal
	var known *rpcError
	if errors.As(err, &known) {
		code = known.code
	}
	w := canon.BeginObject(nil)
	writeError := canon.BeginObject(nil)
	writeError.Int("code", int64(code))
	writeError.String("message", clean(err.Error()))
	w.Raw("error", writeError.End())
	if id == "" {
		w.Null("id")
	} else {
		w.Raw("id", []byte(id))
	}
	w.String("jsonrpc", "2.0")
	return w.End()
}

// toolErrorMessage answers a tool call with an error that the model can read.
func toolErrorMessage(id string, err error) []byte {
	content := canon.BeginObject(nil)
	content.String("text", sentence(clean(err.Error())))
	content.String("type", "text")
	result := canon.BeginObject(nil)
	result.Raw("content", append(append([]byte{'['}, content.End()...), ']'))
	result.Bool("isError", true)
	// Without it, clients of the protocol of 2026-07-28 do not take the answer. Older ones ignore it.
	result.String("resultType", "complete")
	w := canon.BeginObject(nil)
	w.Raw("id", []byte(id))
	w.String("jsonrpc", "2.0")
	w.Raw("result", result.End())
	return w.End()
}

// progressMessage tells a client that its call still waits.
func progressMessage(token canon.Value, seconds int64, text string) []byte {
	params := canon.BeginObject(nil)
	params.String("message", clean(text))
	params.Int("progress", seconds)
	params.Raw("progressToken", token.Bytes())
	w := canon.BeginObject(nil)
	w.String("jsonrpc", "2.0")
	w.String("method", methodProgress)
	w.Raw("params", params.End())
	return w.End()
}

// sentence makes a sentence of the text of an error.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(text[size:], ".") + "."
}

// clean makes a text valid UTF-8, because errors may contain what a server sent.
func clean(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// outcome is what became of a tool call.
type outcome struct {
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// response is what the gateway reads of a server's message. A server is free to send what a client
// may not, such as large numbers: its messages are passed on whether they can be read or not.
type response struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code int64 `json:"code"`
	} `json:"error"`
}

// responseOf reads a message of a server. Its id is in canonical JSON, and empty if the message is not a
// response.
func responseOf(text []byte) (r response, id string) {
	if err := json.Unmarshal(text, &r); err != nil || r.Method != "" {
		return response{}, ""
	}
	if canonical, err := canon.Canonicalize(r.ID); err == nil && string(canonical) != "null" {
		id = string(canonical)
	}
	return r, id
}

// outcome says what became of a tool call. The texts of a response are no part of it, because they
// may contain secrets.
func (r *response) outcome() outcome {
	if r.Error != nil {
		return outcome{"failed", fmt.Sprintf("the server answered with the error %d", r.Error.Code)}
	}
	var result struct {
		IsError bool            `json:"isError"`
		Task    json.RawMessage `json:"task"`
		Type    string          `json:"resultType"`
	}
	switch err := json.Unmarshal(r.Result, &result); {
	case err != nil:
		return outcome{"unknown", "the server's answer cannot be read"}
	case result.IsError:
		return outcome{"failed", "the tool reported an error"}
	case result.Task != nil:
		return outcome{"unknown", "the server carries it out as a task"}
	case result.Type == "input_required":
		return outcome{"unknown", "the tool asked the client for input"}
	}
	return outcome{Outcome: "succeeded"}
}
