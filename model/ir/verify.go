package ir

import "fmt"

// Verify checks every invariant a pass may rely on: nodes in topological order,
// each value produced once, types equal to what the op table infers, attributes
// the op reads and no others, in-place outputs used by nobody after they are
// overwritten, outputs that exist. Its errors wrap ErrInvalid.
func Verify(g *Graph) error {
	if g.err != nil {
		return fmt.Errorf("graph %s: %w", g.Name, g.err)
	}
	defined := make([]bool, len(g.Values))
	for i := 1; i < len(g.Values); i++ {
		v := &g.Values[i]
		if v.ID != ID(i) {
			return fmt.Errorf("graph %s: %w: value %d says it is %d", g.Name, ErrInvalid, i, v.ID)
		}
		if v.Class != ClassNode {
			defined[i] = true
			if v.Name == "" || g.byName[v.Name] != v.ID {
				return fmt.Errorf("graph %s: %w: %s value %d has no unique name", g.Name, ErrInvalid, v.Class, i)
			}
		}
	}
	overwritten := map[ID]int{}
	for i := range g.Nodes {
		if err := verifyNode(g, i, defined, overwritten); err != nil {
			return fmt.Errorf("graph %s: node %d %s %s: %w", g.Name, i, g.Nodes[i].Op, g.Nodes[i].Attr.Module, err)
		}
	}
	for _, o := range g.Outputs {
		if o.Value <= 0 || int(o.Value) >= len(g.Values) || !defined[o.Value] {
			return fmt.Errorf("graph %s: %w: output %q is not computed", g.Name, ErrInvalid, o.Name)
		}
	}
	return nil
}

func verifyNode(g *Graph, i int, defined []bool, overwritten map[ID]int) error {
	n := &g.Nodes[i]
	types, err := infer(g, n.Op, n.Attr, n.In)
	if err != nil {
		return err
	}
	if len(types) != len(n.Out) {
		return fmt.Errorf("%w: %d outputs, the table says %d", ErrInvalid, len(n.Out), len(types))
	}
	for k, id := range n.In {
		if !defined[id] {
			return fmt.Errorf("%w: input %d used before it is computed", ErrInvalid, k)
		}
		if w, gone := overwritten[id]; gone {
			return fmt.Errorf("%w: input %d was overwritten by node %d", ErrInvalid, k, w)
		}
	}
	spec := n.Op.Spec()
	for k, id := range n.Out {
		if id <= 0 || int(id) >= len(g.Values) || defined[id] || g.Values[id].Node != i {
			return fmt.Errorf("%w: output %d is produced elsewhere", ErrInvalid, k)
		}
		if g.Values[id].Type.DType != types[k].DType || !g.Values[id].Type.Shape.Equal(types[k].Shape) {
			return fmt.Errorf("%w: output %d is %s, the table infers %s", ErrInvalid, k, g.Values[id].Type, types[k])
		}
		defined[id] = true
		if k < spec.InPlace {
			if root := Root(g, n.In[k]); g.Value(root).Class != ClassState && g.Value(root).Class != ClassWeight && g.Value(root).Class != ClassAdapter {
				return fmt.Errorf("%w: output %d is in place over %s, which is no state", ErrInvalid, k, g.Value(root).Name)
			}
			overwritten[n.In[k]] = i
		}
	}
	return nil
}

// Root follows in-place outputs back to the value whose memory they share.
func Root(g *Graph, id ID) ID {
	for {
		v := g.Value(id)
		if v.Class != ClassNode {
			return id
		}
		n := &g.Nodes[v.Node]
		k := indexOf(n.Out, id)
		if k < 0 || k >= n.Op.Spec().InPlace {
			return id
		}
		id = n.In[k]
	}
}

func indexOf(ids []ID, id ID) int {
	for i, x := range ids {
		if x == id {
			return i
		}
	}
	return -1
}
