package appliance

import (
	"errors"
	"fmt"

	"smolgym/appliance/engine"
	"smolgym/kernels"
	"smolgym/store"
)

// Code says what kind of problem it is; transports map it to their own codes.
type Code string

// The codes.
const (
	CodeUser        Code = "user"        // the request can't be right
	CodeConflict    Code = "conflict"    // right by itself, at odds with what is there
	CodeNotFound    Code = "not_found"   // names something that isn't there
	CodeGone        Code = "gone"        // was there, and is no more
	CodeNoFit       Code = "no_fit"      // more memory than there is
	CodeUnsupported Code = "unsupported" // sound, and not served by this program or machine
	CodeTooLarge    Code = "too_large"   // beyond a stated limit
	CodeBusy        Code = "busy"        // try again in a moment
	CodeServer      Code = "server"      // our fault
)

// Problem is an error with a text for the user. The cause is for the log.
type Problem struct {
	Code    Code
	Message string
	Hint    string // what to do, when the message doesn't say
	cause   error
}

// Problemf is a problem with a message.
func Problemf(code Code, format string, args ...any) *Problem {
	return &Problem{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint adds what to do.
func (p *Problem) WithHint(format string, args ...any) *Problem {
	p.Hint = fmt.Sprintf(format, args...)
	return p
}

// Because adds the cause.
func (p *Problem) Because(err error) *Problem {
	p.cause = err
	return p
}

// Error is the message and the hint.
func (p *Problem) Error() string {
	if p.Hint == "" {
		return p.Message
	}
	return p.Message + "; " + p.Hint
}

// Unwrap is the cause.
func (p *Problem) Unwrap() error { return p.cause }

// problemOf gives err a code. doing says what was being done, with its object.
func problemOf(doing string, err error) *Problem {
	var p *Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		return p
	case errors.Is(err, engine.ErrRequest), errors.Is(err, store.ErrInvalid), errors.Is(err, engine.ErrNonFinite):
		return Problemf(CodeUser, "%s: %v", doing, err).Because(err)
	case errors.Is(err, store.ErrNotFound):
		return Problemf(CodeNotFound, "%s: %v", doing, err).Because(err)
	case errors.Is(err, store.ErrExists):
		return Problemf(CodeConflict, "%s: %v", doing, err).Because(err)
	case noFit(err):
		return Problemf(CodeNoFit, "%s: %v", doing, err).Because(err)
	case errors.Is(err, engine.ErrCanceled):
		return Problemf(CodeUser, "%s: canceled by its client", doing).Because(err)
	case errors.Is(err, engine.ErrClosed):
		return Problemf(CodeBusy, "%s: the server is stopping; try again once it runs", doing).Because(err)
	}
	return Problemf(CodeServer, "%s: the server failed; its log has the cause", doing).Because(err)
}

func noFit(err error) bool {
	return errors.Is(err, engine.ErrNoFit) || errors.Is(err, kernels.ErrMemory)
}

// Failure is how accepted work ended badly.
type Failure struct {
	Message  string
	Category string // user or server
}

// failureOf is what the client of a future is told.
func failureOf(p *Problem) *Failure {
	category := "user"
	switch p.Code {
	case CodeServer, CodeBusy:
		category = "server"
	}
	return &Failure{Message: p.Error(), Category: category}
}
