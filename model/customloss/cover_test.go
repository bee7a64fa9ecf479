package customloss

import (
	"slices"
	"strings"
	"testing"
)

// TestEveryFormHasAGolden: no form of the table goes without a comparison with torch.
func TestEveryFormHasAGolden(t *testing.T) {
	seen := map[*operation]bool{}
	names := map[*operation][]string{}
	for name, forms := range table {
		for _, o := range forms {
			names[o] = append(names[o], name)
			if len(names[o]) == 1 {
				run := o.run
				o.run = func(m *machine, a []any) any {
					seen[o] = true
					return run(m, a)
				}
				defer func() { o.run = run }()
			}
		}
	}
	for _, g := range goldens(t) {
		l, err := Import(g.Graph, g.Inputs)
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		logprobs, inputs := g.tensors()
		if _, err := l.Run(logprobs, inputs); err != nil {
			t.Errorf("%s: %v", g.Name, err)
		}
	}
	for o, doors := range names {
		if !seen[o] {
			slices.Sort(doors)
			t.Errorf("%s with %d parameters is in no golden: add an expression to testdata/operations.py", strings.Join(doors, ", "), len(o.params))
		}
	}
	t.Logf("%d forms under %d names", len(names), len(table))
}
