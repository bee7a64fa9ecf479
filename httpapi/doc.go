// Package httpapi has routes, limits, auth, error mapping; handlers decode, call appliance, encode.
//
// [New] gives the handler for an appliance. /api/v1 is the wire of package wire;
// /smolgym/v1 is ours (see ours.go for its bodies). Every error answer is
// {"detail": "…"}; a failure of accepted work is a normal answer of
// retrieve_future. The map from problems to statuses is in errors.go and nowhere
// else: never a 400 without a body, never 402, never 409, for these mean other
// things to clients.
package httpapi
