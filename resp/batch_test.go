package resp

import (
	"strconv"
	"testing"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// call encodes a call of the counting script.
func call(key string, n int) string {
	return Bulk(key) + Bulk(strconv.Itoa(n)) + Bulk("60")
}

func TestEvalAllAnswersInOrder(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := NewLink(optionsFor(s), nil)
	defer Drop(l)
	for round := 1; round <= 3; round++ {
		for _, size := range []int{1, 2, 8, 32, 256} {
			var calls []string
			counts := make([]int64, size+1)
			counts[size] = -5
			for i := 0; i < size; i++ {
				calls = append(calls, call(strconv.Itoa(size)+"-"+strconv.Itoa(i), i+1))
			}
			c, err := Connect(l, soon())
			if err != nil {
				t.Fatal(err)
			}
			answered, refusals, err := EvalAll(c, soon(), counting, 2, calls, counts)
			if answered != size || refusals != nil || err != nil || !c.ok {
				t.Fatalf("%d calls: %d answered, %q, %v, usable %v", size, answered, refusals, err, c.ok)
			}
			for i := range calls {
				if want := int64(round * (i + 1)); counts[i] != want {
					t.Errorf("call %d of %d: got %d, want %d", i, size, counts[i], want)
				}
			}
			if counts[size] != -5 {
				t.Error("wrote behind the last count")
			}
		}
	}
	if s.Accepted() != 1 {
		t.Errorf("%d connections", s.Accepted())
	}
}
