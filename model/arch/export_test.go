package arch

import (
	"smolgym/model/hf"
	"smolgym/model/ir"
)

// Skeleton is the graph of a configuration, whatever is stored.
func Skeleton(config []byte, mode Mode) (*ir.Graph, error) {
	c, err := hf.ParseConfig(config)
	if err != nil {
		return nil, err
	}
	b, err := families[c.ModelType].build(&hf.Checkpoint{Config: *c}, mode)
	if err != nil {
		return nil, err
	}
	return b.g.Finish()
}

// Class is the reference's class with an output head, and the one of several
// parts that the decoder is taken out of.
func Class(family string) (head, wrapper string) {
	return families[family].architecture, families[family].wrapper
}

// RopeTypes are the scalings of rotary embeddings.
func RopeTypes() []string { return ropeTypes }

// Learned says that a family has no rotary embedding.
func Learned(family string) bool { return families[family].noRope }
