// Go: package variables: of four accesses of a turn three to main.table (two to X, one to Mass), one to main.counts.
// build: go build -o $BIN $SRC
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

type particle struct {
	X, Y, Z, Mass float64
}

const many = 1 << 15

var table [many]particle
var counts [many]uint64
var sink float64

//go:noinline
func run() float64 {
	sum := 0.0
	for i := range table {
		one := &table[i]
		sum += one.X
		sum += float64(counts[i])
		one.X = 2
		sum += one.Mass
	}
	return sum
}

func main() {
	seconds := 3600.0
	if len(os.Args) > 1 {
		seconds, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	fmt.Println("ready", os.Getpid())
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for time.Now().Before(until) {
		for n := 0; n < 8; n++ {
			sink = run()
		}
	}
	fmt.Println("checksum", sink)
}
