// Package wire holds request and response types exactly as the SDK sends them, JSON and protobuf.
//
// Three groups:
//
//   - protobuf: DecodeForwardBackwardRequest, ForwardBackwardOutput and SampleResponse, written by hand on protowire
//     because the schema is small and stable. Encoders sort map entries, so equal values give equal bytes.
//   - JSON: one struct per body, read by DecodeJSON, which names the field path of anything it refuses, and
//     written by encoding/json. Unknown fields are ignored, null counts as absent, keys are case-sensitive.
//   - syntax: DecodeBody (compressed bodies), ParsePath, ParsePage, CheckName.
//
// Nothing here knows a model, a run or an HTTP status. Every decoder takes bytes from strangers: it returns an error,
// never panics, and allocates no more than a fixed multiple of what it was sent (see the Max constants).
package wire
