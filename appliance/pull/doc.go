// Package pull fetches a model from a hub, resumably.
//
// [Model] asks for the file list of one commit, so that what arrives fits together whatever happens on the hub meanwhile,
// chooses what a model needs, and streams each file into a [Sink], which knows every file's sha256 beforehand and keeps
// what has arrived: when it is run again it goes on from there. [Server] is the sink that a running server is.
package pull
