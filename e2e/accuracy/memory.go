package main

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gatequota/gatequota/window"
)

// memory is what one client takes in bytes: after one request, and with the whole limit
// used up within one window.
type memory struct{ one, full float64 }

// measured are the limits that memory and the work of the store are measured with, and
// how many clients there are.
func measured(p *plan) []measure {
	var found []measure
	for _, c := range counters(p)[:4] {
		found = append(found, measure{counter: c, clients: 20_000})
	}
	large := window.Limit{Algorithm: window.Exact, Limit: 10_000, Length: p.window}
	return append(found, measure{counter: counter{name: "sliding-log, limit 10000", limit: large}, clients: 20})
}

type measure struct {
	counter
	clients int
}

// inGateway measures the memory of clients in a gateway: by how much the heap grows, with
// the names of the clients in it.
func inGateway(m *measure) memory {
	before := heap()
	take := table(&m.limit, m.clients)
	names := make([]string, m.clients)
	for i := range names {
		names[i] = fmt.Sprintf("client-%09d", i)
	}
	list := float64(cap(names)) * float64(unsafe.Sizeof("")) // that of this function
	now := int64(start) / (m.limit.Length * 1000) * m.limit.Length * 1000
	each := func(from, to int64) float64 {
		for _, name := range names {
			for n := from; n < to; n++ {
				if !take(name, now+n) {
					panic("a request within the limit was refused")
				}
			}
		}
		grown := float64(heap()) - float64(before) - list
		runtime.KeepAlive(take)
		runtime.KeepAlive(names)
		return grown / float64(m.clients)
	}
	return memory{one: each(0, 1), full: each(1, m.limit.Limit)}
}

// heap returns the bytes in use after a collection of all that is not.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
