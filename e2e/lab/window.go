package lab

import "time"

// QuietWindow returns a length of fixed windows for which now lies in the first
// half of its window, away from the edge behind it, and the window's id: whoever
// counts in it meets no edge for at least half an hour. now lies after 1970.
func QuietWindow(now time.Time) (length time.Duration, id int64) {
	for seconds := int64(3600); ; seconds += 60 {
		if at := now.Unix() % seconds; at >= 10 && at < seconds/2 {
			return time.Duration(seconds) * time.Second, now.Unix() / seconds
		}
	}
}

// UntilEdge returns how long it is until the next edge of windows of a length.
func UntilEdge(now time.Time, length time.Duration) time.Duration {
	return length - time.Duration(now.UnixNano()%int64(length))
}

// AwaitRoom waits until at least room is left of the present window, and
// returns the window's id.
func AwaitRoom(length, room time.Duration) int64 {
	if left := UntilEdge(time.Now(), length); left < room {
		time.Sleep(left + 20*time.Millisecond)
	}
	return time.Now().UnixNano() / int64(length)
}

// AwaitBefore waits until the next edge is exactly ahead away, or a little less.
func AwaitBefore(length, ahead time.Duration) {
	left := UntilEdge(time.Now(), length)
	if left < ahead {
		left += length
	}
	time.Sleep(left - ahead)
}
