package bench

import "time"

// usage is the processor time that was used up to a moment, or between two.
type usage struct {
	server   time.Duration // the process under load
	backends time.Duration // all of PostgreSQL's processes; 0 where they are not on this machine
	load     time.Duration // this process
	cores    idle
}

// idle is how long cores had nothing to do. The zero value means that the system
// does not tell.
type idle struct {
	server time.Duration // the server's core
	all    time.Duration // the sum over all cores
	count  int           // of cores
}

func (u usage) since(before usage) usage {
	return usage{
		server: u.server - before.server, backends: u.backends - before.backends, load: u.load - before.load,
		cores: idle{server: u.cores.server - before.cores.server, all: u.cores.all - before.cores.all, count: u.cores.count},
	}
}

// coreShare is the part of its core that the server had for a time, used or left idle; 0
// where the system does not tell. What others took from it has two bounds: what its core
// did for anyone else, and what the whole machine did for anyone but the server, PostgreSQL
// and the load generator. The lower one counts, because PostgreSQL may run on any core, the
// server's too, and is part of what is measured. Time that the host of a virtual machine
// took counts as taken.
func (u usage) coreShare(elapsed time.Duration) float64 {
	if u.cores.count == 0 || elapsed <= 0 {
		return 0
	}
	onCore := elapsed - u.cores.server - u.server
	onMachine := time.Duration(u.cores.count)*elapsed - u.cores.all - u.server - u.backends - u.load
	taken := max(0, min(onCore, onMachine))
	return 1 - taken.Seconds()/elapsed.Seconds()
}

// leastShare is the share of its core below which a server's round does not count.
const leastShare = 0.9

// starved reports whether the server had too little of its core.
func (m *Measurement) starved() bool { return m.CoreShare != 0 && m.CoreShare < leastShare }
