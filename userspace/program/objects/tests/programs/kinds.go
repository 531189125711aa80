// Kinds of data objects of Go. Lines as in kinds.c; "thread TID" names the thread.
package main

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

type Particle struct {
	X, Y   float64
	Charge int32
}

var counter int = 3
var table [64]Particle
var cells []Particle

//go:noinline
func spin(local *[4]Particle) {
	for {
		local[0].Charge++
	}
}

func main() {
	runtime.LockOSThread()
	cells = make([]Particle, 100)
	var local [4]Particle
	fmt.Printf("static %p main.counter||int\n", &counter)
	fmt.Printf("static %p main.table|[].Charge|[64]main.Particle\n", &table[3].Charge)
	fmt.Printf("heap %p main.cells|.Y|main.Particle\n", &cells[0].Y)
	fmt.Printf("stack 0x%x local|[].Charge|[4]main.Particle\n", uintptr(unsafe.Pointer(&local[2].Charge)))
	fmt.Printf("thread %d\nready\n", syscall.Gettid())
	spin(&local)
}
