// Command smolgym serves and manages models that are post-trained and sampled on this machine.
//
// A verb is one short file. Answers go to stdout, progress and hints to stderr;
// exit codes are 0 ok, 1 failed, 2 usage, 3 not found, 4 not allowed, 5 server
// unreachable.
package main
