// Package smolgym is the module's root: it holds only the test of the layout; the program is cmd/smolgym.
package smolgym
