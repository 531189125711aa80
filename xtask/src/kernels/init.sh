#!/bin/busybox sh
# The first process of a guest of `cargo xtask kernels`: runs the checks that the kernel's command line names
# (`checks=a,b,c`), and sends what each printed to the second serial port. The host judges; nothing is judged here.
#
# Each check sends one compressed tar file, so that a guest that dies later loses nothing of the earlier ones.

/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t securityfs security /sys/kernel/security
mkdir -p /sys/fs/cgroup
mount -t cgroup2 cgroup /sys/fs/cgroup
stty -F /dev/ttyS1 raw -echo
now() { cut -d' ' -f1 /proc/uptime; }

# result NAME: begins a check.
result() {
    check=$1
    d=/results/$check
    mkdir -p "$d"
    echo "check $check at $(now)"
}

# run SECONDS COMMAND…: keeps what it prints, and its exit status.
run() {
    limit=$1
    shift
    timeout -s KILL "$limit" "$@" >"$d/out" 2>"$d/err" </dev/null
    echo $? >"$d/rc"
}

send() { tar -C /results -cz -f - "$check" >/dev/ttyS1; }

# target PROGRAM…: starts one, and waits until it is ready. Its process id is $pid, what it prints is in target.out.
target() {
    "$@" >"$d/target.out" 2>&1 </dev/null &
    pid=$!
    for tick in 1 2 3 4 5 6 7 8 9 10; do
        grep -q ready "$d/target.out" && break
        sleep .5
    done
}

end() { kill -9 "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; }

# tracer: traces the target in the background, until its profile has samples. Its id is $tracer.
tracer() {
    locality-bpf -p "$pid" -q -o "/tmp/$check.locality" >"$d/tracer" 2>&1 </dev/null &
    tracer=$!
    for tick in $(seq 30); do
        sleep 2
        # The report of a trace under way exits with 1, since the profile is not complete.
        locality-bpf report "/tmp/$check.locality" --format json 2>/dev/null | grep -q '"samples": [1-9]' && break
    done
}

# CPU time of a process in ticks: user and system.
ticks() { sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f12,13 | tr ' ' '+' | xargs -I{} sh -c 'echo $(({}))'; }

# observe NAME: what the target does within two seconds: CPU ticks before and after, state, tracer.
observe() {
    before=$(ticks "$pid")
    sleep 2
    {
        echo "ticks $before $(ticks "$pid")"
        grep -E '^(State|TracerPid):' "/proc/$pid/status"
    } >"$d/$1" 2>&1
}

trace() { # SECONDS-OF-LIMIT PROGRAM OPTIONS…
    limit=$1 program=$2
    shift 2
    target "$program"
    run "$limit" locality-bpf -p "$pid" --format json -o "/tmp/$check.locality" "$@"
    observe after
    end
}

check_doctor() { run 60 locality-bpf doctor --json; }
check_trace() { trace 90 two_loops -d 3; }
check_overhead() { trace 90 column_walk -d 5 --overhead 5; }
# The window process of a crowded host may be late at every stop; a machine that cannot have windows has none in three traces.
check_windows() {
    for attempt in 1 2 3; do
        trace 90 two_loops -d 5 --max-stop 20ms --overhead 20
        grep -q 'window ended: whole' "$d/out" && break
    done
}
check_user_only() { trace 90 two_loops -d 3 --user-only --overhead 5; }
check_probes() { trace 90 two_loops -d 2 $heap_probes; }

check_cgroup() {
    mkdir /sys/fs/cgroup/checked
    target column_walk
    echo "$pid" >/sys/fs/cgroup/checked/cgroup.procs
    run 90 locality-bpf --cgroup /sys/fs/cgroup/checked -d 5 --overhead 5 --format json -o /tmp/c.locality
    end
}

launched() {
    run 90 locality-bpf -o "/tmp/$check.locality" --format json --report "$d/report" "$@" \
        -- sh -c 'heap_storm 4; exit 3'
}
check_launch() { launched $heap_off; }
check_launch_default() { launched; }
check_launch_probes() { launched $heap_probes; }

check_storm() {
    thread_storm 2 >"$d/alone" 2>&1
    run 90 locality-bpf -o /tmp/storm.locality --format json --report "$d/report" -- thread_storm 6
}

check_kill() {
    target two_loops
    tracer
    kill -9 "$tracer"
    wait "$tracer" 2>/dev/null
    sleep 2
    observe after
    run 30 locality-bpf report /tmp/kill.locality --format json
    end
}

check_stop() {
    target two_loops
    tracer
    kill -STOP "$tracer"
    sleep 2
    observe after
    kill -9 "$tracer" 2>/dev/null
    wait "$tracer" 2>/dev/null
    run 30 locality-bpf report /tmp/stop.locality --format json
    end
}

check_nobody() {
    target two_loops
    run 30 su -s /bin/sh nobody -c "exec locality-bpf -p $pid -d 1 -o /tmp/nobody.locality"
    end
}

# A process of the initial namespace is busy meanwhile, and so is one in a namespace below.
check_pid_namespace() {
    target two_loops
    run 90 unshare -m -p -f sh -c 'mount -t proc proc /proc
        column_walk >/dev/null &
        unshare -p -f column_walk >/dev/null &
        sleep 2
        locality-bpf --namespace -d 8 --overhead 5 --format json -o /tmp/namespace.locality
        status=$?
        kill -9 -1
        exit $status'
    end
}

check_refused() {
    target two_loops
    run 30 locality-bpf -p "$pid" -d 1 -o /tmp/refused.locality
    locality-bpf doctor >"$d/doctor" 2>&1
    end
}

for argument in $(cat /proc/cmdline); do
    case $argument in
        checks=*) checks=$(echo "${argument#checks=}" | tr , ' ') ;;
    esac
done
case $(locality-bpf --help 2>/dev/null) in
    *--heap*probes*) heap_probes=--heap=probes heap_off=--heap=off ;;
    *) heap_probes=--heap heap_off=--no-heap ;;
esac
mkdir -p /results
echo "ready at $(now)"
for name in $checks; do
    result "$name"
    "check_$name"
    send
done
echo "done at $(now)"
sync
poweroff -f
