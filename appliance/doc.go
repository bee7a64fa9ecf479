// Package appliance is the product: runs, checkpoints, ordered futures, the one owner of the device, metrics.
//
// [Open] takes a data folder and a device and gives an [Appliance]. Its methods
// are safe for concurrent use and never wait for the device: what takes time is
// accepted as a future ([Ticket]) and fetched by [Appliance.Retrieve]. Errors
// returned at once are [*Problem]s; failures of accepted work are a [Failure] in
// the answer.
//
// # Order
//
// A run has one lane of the engine and executes its requests in rising number.
// Numbers may have gaps. A repeat of a number with the same content is answered
// from the first; with other content, or below a number that was executed and
// never seen, it is refused.
//
// # What is kept
//
// Models, sessions, runs, checkpoints and named samplers live in the store.
// Training state between checkpoints and the weights of unnamed samplers live in
// device memory and end with the process, with their session, or, for unnamed
// samplers, when memory is needed and newer ones of the same run exist.
package appliance
