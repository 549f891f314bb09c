package httpapi

// Polls is how many requests wait for a decision.
func (a *API) Polls() int {
	a.polls.mu.Lock()
	defer a.polls.mu.Unlock()
	return a.polls.total
}

// HoldLarge keeps large bodies from being parsed until the returned function is called.
func (a *API) HoldLarge() (release func()) {
	for range cap(a.large.free) {
		a.large.free <- struct{}{}
	}
	return func() {
		for range cap(a.large.free) {
			<-a.large.free
		}
	}
}
