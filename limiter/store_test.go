package limiter

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/gatequota/gatequota/window"
)

func TestStoresAreSharedByIdentity(t *testing.T) {
	base := StoreSettings{Network: "tcp", Address: "127.0.0.1:1", Username: "u", Password: "p", DB: 1, Timeout: time.Second, DialTimeout: time.Second, KeyPrefix: "rate"}
	first := openStore(&base, nil)
	same := base
	same.KeyPrefix = "other"
	if openStore(&same, nil) != first {
		t.Error("another key prefix makes another store")
	}
	for name, change := range map[string]func(*StoreSettings){
		"network":     func(s *StoreSettings) { s.Network = "unix" },
		"address":     func(s *StoreSettings) { s.Address = "127.0.0.1:2" },
		"username":    func(s *StoreSettings) { s.Username = "v" },
		"password":    func(s *StoreSettings) { s.Password = "q" },
		"db":          func(s *StoreSettings) { s.DB = 2 },
		"tls":         func(s *StoreSettings) { s.TLSIdentity = "t" },
		"timeout":     func(s *StoreSettings) { s.Timeout = 2 * time.Second },
		"dialTimeout": func(s *StoreSettings) { s.DialTimeout = 2 * time.Second },
	} {
		other := base
		change(&other)
		if openStore(&other, nil) == first {
			t.Errorf("another %s makes no other store", name)
		}
	}
}

func TestTablesAreKeyedByLedgerScopeAndLength(t *testing.T) {
	forget()
	of := func(ledger, scope string, length int64, maxClients int) *table {
		return openTable(openLedger(ledger), ledger, scope, &Settings{Window: length, MaxClients: maxClients}, start)
	}
	a := of("local", "tables", 60, 10)
	if of("local", "tables", 60, 20) != a {
		t.Error("one scope has two tables")
	}
	for i := int64(0); i < 30; i++ {
		window.FixedFind(a.counts, strconv.FormatInt(i, 10), 7)
	}
	if got := window.FixedLen(a.counts); got != 20 {
		t.Errorf("the table holds %d of 30, want the 20 that were loaded last", got)
	}
	if of("local", "tables", 3600, 10) == a || of("local", "tables2", 60, 10) == a || of("tcp x 0", "tables", 60, 10) == a {
		t.Error("another length, scope or ledger has the same table")
	}
}

func TestTableThatNobodyUsesIsEmptied(t *testing.T) {
	forget()
	another := func(later time.Duration) {
		New(context.Background(), &Settings{Scope: "another", Limit: 5, Window: 60, MaxClients: 10}, start.Add(later))
	}
	l := open(t, &Settings{Scope: "unused", Limit: 5, Window: 60, MaxClients: 10})
	take(l, "client", 3, start)
	another(time.Second)
	if got := window.FixedLen(l.table.counts); got != 1 {
		t.Errorf("a reload leaves %d clients, want 1", got)
	}
	another(3 * time.Minute)
	if got := window.FixedLen(l.table.counts); got != 0 {
		t.Errorf("two windows later there are %d clients, want 0", got)
	}
}
