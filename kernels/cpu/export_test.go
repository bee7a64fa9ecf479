//go:build linux && cgo

package cpu

// What the tests see of the inside.

var MathAt = mathAt

func (d *Device) FMAPeak(rounds int) float64 { return d.fmaPeak(rounds) }

// LevelCodes gives the C code of each level this machine runs.
func LevelCodes() map[string]int {
	codes := map[string]int{}
	for _, l := range levels {
		for _, name := range Levels() {
			if name == l.name {
				codes[name] = int(l.code)
			}
		}
	}
	return codes
}
