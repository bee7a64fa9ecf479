package engine

// Pending is an accepted sample request whose Done has not been called, or just
// was. Its methods may be called from any goroutine, at any time.
type Pending struct {
	e *Engine
	j *job
}

// Started says whether the prompt has pages and is in the batches; before that
// the request waits for others to end.
func (p *Pending) Started() bool { return p.j.started.Load() }

// Cancel asks the owner to end the request between two steps: what it holds comes
// back and its Done is called with ErrCanceled. After Done it does nothing.
func (p *Pending) Cancel() {
	e := p.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return // everything was failed
	}
	e.canceled = append(e.canceled, p.j)
	e.signal()
}

// drop ends the requests that were canceled. Owner.
func (d *decoder) drop() {
	e := d.e
	e.mu.Lock()
	canceled := e.canceled
	e.canceled = nil
	e.mu.Unlock()
	for _, j := range canceled {
		if !j.ended {
			d.fail(j, ErrCanceled)
		}
	}
}
