package limiter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/resp"
)

// clockAge is how old the last reading of the store's clock may be.
const clockAge = time.Minute

// maxUnix is the last second of the year 2199. No clock is further on, and nanoseconds
// can count to it.
const maxUnix = 7258118399

// Began is where this process counts time from. It is never changed. Differences to it
// are taken by the monotonic clock, so that a store's time, once read, goes on evenly
// whatever happens to the clock of this machine.
var Began = time.Now()

// storeTime returns the time of the store at now, in unix nanoseconds.
func storeTime(s *store, now time.Time) int64 {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	return int64(now.Sub(Began)) + s.origin
}

// readClock asks the store for its time over conn. A user who may not call TIME costs
// only this: windows then follow our own clock.
func readClock(s *store, conn *resp.Conn, deadline time.Time) (refusal string, err error) {
	sent := time.Now()
	s.mu.Lock()
	s.clockRead = sent
	s.mu.Unlock()
	reply, err := resp.Do(conn, deadline, "TIME")
	roundTrip := time.Since(sent)
	if err != nil {
		return "", err
	}
	if reply.Kind == '-' {
		word := resp.Word(reply.Text)
		// An ERR may mean an unknown command, or that there are too many clients.
		if word != "NOPERM" && !(word == "ERR" && strings.Contains(strings.ToUpper(reply.Text), "TIME")) {
			return reply.Text, nil
		}
		setOrigin(s, sent.UnixNano()-int64(sent.Sub(Began)))
		s.mu.Lock()
		news := !s.clockRefused
		s.clockRefused = true
		s.mu.Unlock()
		if news {
			tell(s, "time", fmt.Sprintf("refuses TIME (%s); windows follow this gateway's clock", word))
		}
		return "", nil
	}
	if len(reply.Array) != 2 {
		return "", fmt.Errorf("reading the store's clock: %w", resp.ErrProtocol)
	}
	seconds, err := strconv.ParseInt(reply.Array[0].Text, 10, 64)
	if err != nil || seconds < 0 || seconds > maxUnix {
		return "", fmt.Errorf("reading the store's clock: %w", resp.ErrProtocol)
	}
	micros, err := strconv.ParseInt(reply.Array[1].Text, 10, 64)
	if err != nil {
		return "", fmt.Errorf("reading the store's clock: %w", resp.ErrProtocol)
	}
	middle := int64(sent.Sub(Began) + roundTrip/2)
	learnClock(s, time.Unix(seconds, micros*1000).UnixNano()-middle, roundTrip)
	return "", nil
}

// learnClock takes a reading of the store's clock over, unless its round trip was
// so long that the one we have is better: the error of a reading is at most half
// its round trip. Each reading passed over makes the next more welcome, so that a
// network that became slower is believed in the end.
func learnClock(s *store, origin int64, roundTrip time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roundTrip > 0 && roundTrip > 2*s.roundTrip+time.Millisecond {
		s.ledger.mu.Lock()
		moved := origin - s.origin
		s.ledger.mu.Unlock()
		// A slow reading is no reason to doubt a good one, but what it cannot explain is:
		// it may be another store by now.
		if moved <= int64(roundTrip) && moved >= -int64(roundTrip) {
			s.roundTrip *= 2
			return
		}
	}
	s.clockRefused = false
	s.roundTrip = roundTrip
	if s.roundTrip < 1 {
		s.roundTrip = 1
	}
	setOrigin(s, origin)
}

func setOrigin(s *store, origin int64) {
	s.ledger.mu.Lock()
	s.origin = origin
	s.ledger.mu.Unlock()
}

// clockIsWrong notes that the store goes by another time than we believe.
func clockIsWrong(s *store) {
	lasting(s, "clock", "its clock is ahead of what it was, by a window or more; it is read again")
	s.mu.Lock()
	s.clockRead = time.Time{}
	s.mu.Unlock()
}
