package customloss

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Input is one declared input of a loss: logprobs first, then the
// loss_fn_inputs it reads. Rank 0 is a scalar, 1 is [T] and 2 is [T,K].
type Input struct {
	Name string
	Rank int
}

// Loss is a checked graph, ready to run on any datum. It is immutable: many
// goroutines may run it at once.
type Loss struct {
	inputs  []Input
	nodes   []step
	value   int            // the step that gives the loss
	metrics map[string]int // the step that gives each metric
	lastUse []int          // by step: the last one that reads it
}

// step is one node, its arguments bound to each form of the call they may fit.
type step struct {
	name, target string
	inPlace      bool
	first        int // the step an in-place call changes
	forms        []form
}

type form struct {
	op   *operation
	args []any
}

// Inputs returns the declared inputs in order, logprobs first.
func (l *Loss) Inputs() []Input { return append([]Input(nil), l.inputs...) }

// UnsupportedError lists everything of a graph that can't run here.
type UnsupportedError struct{ Gaps []string }

func (e *UnsupportedError) Error() string {
	const shown = 20
	gaps := e.Gaps
	more := ""
	if len(gaps) > shown {
		more = fmt.Sprintf("; and %d more", len(gaps)-shown)
		gaps = gaps[:shown]
	}
	return "import custom loss: " + strings.Join(gaps, "; ") + more + "; pass the plain function to forward_backward_custom, which runs it on the client"
}

var (
	metricKey = regexp.MustCompile(`^custom/[a-z0-9_./-]{1,64}:(sum|mean)$`)
	inputName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,63}$`)
)

// Import checks a graph, as the SDK encodes it, against the declared inputs. Its
// error wraps ErrGraph when the text is no traced graph, and is an
// *UnsupportedError when it is one that can't run here.
func Import(graph []byte, inputs []Input) (*Loss, error) {
	l, gaps, err := load(graph, inputs)
	if err != nil {
		return nil, fmt.Errorf("import custom loss: %w; create it with ServiceClient.create_custom_loss", err)
	}
	if len(gaps) > 0 {
		return nil, &UnsupportedError{Gaps: gaps}
	}
	return l, nil
}

func checkInputs(inputs []Input) error {
	if len(inputs) == 0 || inputs[0].Name != "logprobs" || inputs[0].Rank == 0 {
		return fmt.Errorf("%w: the first input must be logprobs, of rank 1 or 2", ErrGraph)
	}
	if len(inputs) > maxInputs {
		return fmt.Errorf("%w: %d inputs, the limit is %d", ErrGraph, len(inputs), maxInputs)
	}
	seen := map[string]bool{}
	for _, in := range inputs {
		switch {
		case !inputName.MatchString(in.Name):
			return fmt.Errorf("%w: input %.70q is no lowercase name", ErrGraph, in.Name)
		case seen[in.Name]:
			return fmt.Errorf("%w: input %q is declared twice", ErrGraph, in.Name)
		case in.Rank < 0 || in.Rank > 2:
			return fmt.Errorf("%w: input %q has rank %d, it is 0, 1 or 2", ErrGraph, in.Name, in.Rank)
		}
		seen[in.Name] = true
	}
	return nil
}

func load(graph []byte, inputs []Input) (*Loss, []string, error) {
	if err := checkInputs(inputs); err != nil {
		return nil, nil, err
	}
	g, err := parse(graph)
	if err != nil {
		return nil, nil, err
	}
	l := &Loss{inputs: append([]Input(nil), inputs...), value: -1}
	at := map[string]int{} // node name to step
	var gaps []string
	for k, n := range g.Nodes {
		if l.value >= 0 {
			return nil, nil, fmt.Errorf("%w: node %.40q after the output", ErrGraph, n.Name)
		}
		if _, again := at[n.Name]; again || n.Name == "" || len(n.Name) > maxString || len(n.Target) > maxString {
			return nil, nil, fmt.Errorf("%w: node %d has no name of its own (%.40q)", ErrGraph, k, n.Name)
		}
		s := step{name: n.Name, target: n.Target, first: -1}
		gap := ""
		switch n.Op {
		case "placeholder":
			if k >= len(inputs) || n.Target != inputs[k].Name {
				return nil, nil, fmt.Errorf("%w: placeholder %.40q is not the declared input number %d", ErrGraph, n.Target, k)
			}
		case "output":
			gap, err = l.output(n, at)
		case "call_function", "call_method":
			gap, err = s.call(n, at)
		case "call_module", "get_attr":
			gap = fmt.Sprintf("%s %.60q (a loss may call torch and math functions and read its inputs alone)", n.Op, n.Target)
		default:
			err = fmt.Errorf("op %.40q", n.Op)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: node %.40q: %w", ErrGraph, n.Name, err)
		}
		if gap != "" {
			gaps = append(gaps, fmt.Sprintf("node %.40q: %s", n.Name, gap))
		}
		at[n.Name] = k
		l.nodes = append(l.nodes, s)
	}
	switch {
	case l.value < 0:
		return nil, nil, fmt.Errorf("%w: no output node", ErrGraph)
	case len(l.nodes) < len(inputs)+1 || g.Nodes[len(inputs)-1].Op != "placeholder":
		return nil, nil, fmt.Errorf("%w: fewer placeholders than the %d declared inputs", ErrGraph, len(inputs))
	}
	l.liveness()
	return l, gaps, nil
}

// call binds a call to the forms of the table; what fits none is a gap.
func (s *step) call(n jsonNode, at map[string]int) (gap string, err error) {
	args, err := decodeAll(n.Args, at)
	if err != nil {
		return "", err
	}
	kwargs := map[string]any{}
	for _, key := range sortedKeys(n.Kwargs) {
		if kwargs[key], err = decode(n.Kwargs[key], at); err != nil {
			return "", err
		}
	}
	if n.Op == "call_function" && strings.HasPrefix(n.Target, ".") {
		return fmt.Sprintf("no function %.60q", n.Target), nil
	}
	name, inPlace := canonical(n.Op, n.Target)
	var why error
	for _, o := range table[name] {
		bound, err := o.bind(args, kwargs)
		if err != nil {
			why = err
			continue
		}
		s.forms = append(s.forms, form{o, bound})
	}
	if inPlace && len(args) > 0 {
		if r, ok := args[0].(ref); ok {
			s.inPlace, s.first = true, int(r)
		}
	}
	if name == "operator.getattr" && len(args) == 2 {
		if attribute, ok := args[1].(string); ok && !slices.Contains(attributes, attribute) {
			return fmt.Sprintf("attribute %.60q", attribute), nil
		}
	}
	switch {
	case len(s.forms) > 0:
		return "", nil
	case why != nil:
		return fmt.Sprintf("%.60s %v", n.Target, why), nil
	case n.Op == "call_method":
		return fmt.Sprintf("Tensor method %.60q", n.Target), nil
	}
	return fmt.Sprintf("function %.60q", n.Target), nil
}

// output reads (loss, {metric: value}).
func (l *Loss) output(n jsonNode, at map[string]int) (gap string, err error) {
	args, err := decodeAll(n.Args, at)
	if err != nil {
		return "", err
	}
	if len(args) != 1 || len(n.Kwargs) > 0 {
		return "", fmt.Errorf("the output has %d values, it returns (loss, metrics)", len(args))
	}
	pair, ok := args[0].(list)
	if !ok || len(pair.items) != 2 {
		return "", fmt.Errorf("the output is no pair (loss, metrics)")
	}
	value, ok := pair.items[0].(ref)
	if !ok {
		return "", fmt.Errorf("the loss is no result of a node")
	}
	metrics, ok := pair.items[1].(dict)
	if !ok {
		return "", fmt.Errorf("the metrics are no dict")
	}
	l.value, l.metrics = int(value), map[string]int{}
	for _, key := range sortedKeys(metrics) {
		v, ok := metrics[key].(ref)
		switch {
		case !metricKey.MatchString(key):
			return "", fmt.Errorf("metric %.70q is not named custom/<name>:sum or custom/<name>:mean", key)
		case !ok:
			return "", fmt.Errorf("metric %q is no result of a node", key)
		}
		l.metrics[key] = int(v)
	}
	return "", nil
}

// liveness finds the last reader of every step, so that a run can let go of values.
func (l *Loss) liveness() {
	l.lastUse = make([]int, len(l.nodes))
	for k, s := range l.nodes {
		for _, f := range s.forms {
			for _, a := range f.args {
				mark(a, k, l.lastUse)
			}
		}
	}
	l.lastUse[l.value] = len(l.nodes)
	for _, at := range l.metrics {
		l.lastUse[at] = len(l.nodes)
	}
}

func mark(arg any, at int, last []int) {
	switch arg := arg.(type) {
	case ref:
		last[arg] = at
	case list:
		for _, a := range arg.items {
			mark(a, at, last)
		}
	case slicing:
		mark(arg.start, at, last)
		mark(arg.stop, at, last)
		mark(arg.step, at, last)
	}
}
