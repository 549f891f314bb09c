package httpapi_test

import "sync"

// together makes n requests at once and returns their answers in order.
func together(n int, send func(i int) *answer) []*answer {
	answers := make([]*answer, n)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-begin
			answers[i] = send(i)
		})
	}
	close(begin)
	all.Wait()
	return answers
}
