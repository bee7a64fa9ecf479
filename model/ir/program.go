package ir

// Space says which memory a Ref points into.
type Space uint8

// The spaces.
const (
	Arena    Space = iota // scratch memory of the device, alive during one run
	External              // a buffer the caller binds: inputs, weights, constants, state, outputs
)

// Ref is where a value's bytes are when a program runs.
type Ref struct {
	Space  Space
	Offset int64 // bytes into the arena, for Arena
	Slot   int   // index into Program.Slots, for External
}

// Slot is one buffer a caller must bind to run the program.
type Slot struct {
	Value  ID // the graph's value
	Name   string
	Class  Class
	Type   Type
	Output bool // an output of the graph that gets a buffer of its own
}

// Step is one node with the places of its values.
type Step struct {
	Node  int // index into Graph.Nodes
	In    []Ref
	Out   []Ref
	Yield bool // the device may let others in after this step (layer boundary)
}

// Program is a graph in execution order with memory assigned for batches up to
// Capacity. It is immutable once planned and may be shared.
type Program struct {
	Graph      *Graph
	Capacity   Dims
	Steps      []Step
	Slots      []Slot
	ArenaBytes int64 // peak scratch memory, known before running
	FLOPs      int64 // at Capacity

	bySlot map[string]int
}

// Index builds the name lookup; the planner calls it once.
func (p *Program) Index() {
	p.bySlot = make(map[string]int, len(p.Slots))
	for i, s := range p.Slots {
		p.bySlot[s.Name] = i
	}
}

// Slot finds a slot by the name of its input, weight, state or output; -1 if
// the program has none of that name.
func (p *Program) Slot(name string) int {
	if i, ok := p.bySlot[name]; ok {
		return i
	}
	return -1
}
