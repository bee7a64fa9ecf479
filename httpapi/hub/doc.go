// Package hub answers hub-shaped requests, so that a client whose HF_ENDPOINT is this server finds the models stored here.
//
// Reading is resolve (HEAD, GET, ranges), model information, trees and references; writing is create, preupload, commit,
// git-lfs objects and a write-only Xet endpoint, which newer clients use for large files without asking. What isn't
// stored here is looked up upstream for the client, who follows only redirects to the same host on HEAD.
//
// A repository is branches of commits, a commit a list of files by sha256, its id a hash of that list. The head of main
// that has everything a model needs is a model; a repository without is incomplete, says why and is nobody's base.
// Everything is kept by the appliance; this package holds tokens of uploads under way and nothing else.
package hub
