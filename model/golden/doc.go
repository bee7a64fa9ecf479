// Package golden unpacks the archives of small models and their numbers that tests compare with.
//
// Only tests import it. The archives are those of testdata in the repository and, where
// the shared folder is at hand, of it.
package golden
