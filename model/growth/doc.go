// Package growth fails a fuzz target that holds more and more memory.
//
// Only tests import it. What counts is live memory: the heap that a forced collection leaves, and the stacks. A
// process also has garbage not yet collected and pages not yet given back, which say nothing about a leak.
package growth
