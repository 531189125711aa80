//! Programs whose windows are compared: some of the system's, and the kernels of `kernels.c`.

use std::is_x86_feature_detected as has;
use std::process::Command;
use std::sync::OnceLock;

/// Name and command of programs that run for some seconds.
pub fn commands() -> Vec<(&'static str, Vec<&'static str>)> {
    let shell = |script: &'static str| vec!["/bin/sh", "-c", script];
    let mut list = vec![
        ("ls", vec!["/bin/ls", "-laR", "/usr"]),
        ("sort", shell("exec sort -R /usr/include/*.h /usr/include/*/*.h")),
        ("python3", vec!["/usr/bin/python3", "-c", PYTHON]),
        ("perl", vec!["/usr/bin/perl", "-e", PERL]),
        ("gzip", shell("exec gzip -9 -c /usr/bin/python3* /usr/lib/x86_64-linux-gnu/libc.so.6")),
        ("xz", shell("exec xz -6 -c /usr/lib/x86_64-linux-gnu/libcrypto.so*")),
        ("sqlite3", vec!["/usr/bin/sqlite3", ":memory:", SQL]),
        ("awk", vec!["/usr/bin/awk", AWK]),
        ("sha256sum", shell("exec sha256sum /usr/lib/x86_64-linux-gnu/*.a /usr/bin/*")),
        ("openssl", vec!["/usr/bin/openssl", "speed", "-seconds", "2"]),
        ("cc1", shell(CC1)),
        ("node", vec!["/usr/bin/node", "-e", NODE]),
        ("java", shell(JAVA)),
        ("grep", shell("exec grep -rE '[a-z]+(foo|bar)[0-9]{3,}' /usr/share /usr/include /usr/lib/python3")),
    ];
    let Some(path) = kernels() else { return list };
    let kernels = [
        ("sse, mmx", "s", true),
        ("x87", "x", true),
        ("string instructions", "r", true),
        ("integer", "i", true),
        ("printf", "p", true),
        ("avx2", "a", has!("avx2") && has!("fma") && has!("f16c")),
        ("bits, crypto", "b", has!("adx") && has!("bmi2") && has!("sha") && has!("movbe")),
        ("avx512", "z", has!("avx512vbmi2") && has!("avx512vl") && has!("avx512dq")),
    ];
    list.extend(kernels.iter().filter(|kernel| kernel.2).map(|kernel| (kernel.0, vec![path, kernel.1])));
    list
}

/// The program of kernels, compiled once; `None` where there is no compiler.
fn kernels() -> Option<&'static str> {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    let compile = || {
        let path = format!("{}/shadow-kernels", env!("CARGO_TARGET_TMPDIR"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kernels.c");
        let done = Command::new("cc").args(["-O1", "-w", "-o", &path, source, "-lm"]).status();
        done.is_ok_and(|status| status.success()).then_some(path)
    };
    PATH.get_or_init(compile).as_deref()
}

const PYTHON: &str = "
import json, re, math
d = {}
for n in range(10**8):
    d[str(n % 5000)] = math.sin(n) * len(re.sub('[0-9]', 'x', str(n)))
    if n % 1000 == 0: json.loads(json.dumps(d))
";
const PERL: &str = "for $n (1..100000000) { $h{$n % 3000} .= chr(65 + $n % 26); $s += ($h{$n % 77} =~ tr/A//); \
    $h{$n % 3000} = '' if length($h{$n % 3000}) > 50; $x = sprintf('%.3f', sqrt($n)); }";
const SQL: &str = "create table t(a integer primary key, b text, c real); with recursive n(i) as (select 1 union all \
    select i + 1 from n where i < 3000000) insert into t select i, hex(i * 7919), sqrt(i) from n; create index x on \
    t(b); select sum(length(b)), avg(c) from t where b like '%A%' group by a % 1000 order by 2;";
const AWK: &str = "BEGIN { while (n < 40000000) { n++; a[n % 1000] = a[n % 77] n; s += length(a[n % 1000]); \
    if (length(a[n % 1000]) > 99) a[n % 1000] = \"\" } print s }";
const NODE: &str = "let a = []; for (let n = 0; n < 1e9; n++) { a[n % 1000] = { x: n, y: 'v' + n }; \
    if (n % 100000 == 0) JSON.parse(JSON.stringify(a)); }";
const CC1: &str = "n=0; while [ $n -lt 3000 ]; do echo \"double f$n(double *a, long b) { double s = $n; for (long i = 0; \
    i < b; i++) s += a[i] * a[i ^ $n] / (s + i); switch (b % 7) { case 0: return s; case 3: return s * $n; default: \
    return a[b % $n]; } }\"; n=$((n + 1)); done > ${TMPDIR:-/tmp}/locality-shadow.c; exec $(gcc -print-prog-name=cc1) \
    -O2 -quiet ${TMPDIR:-/tmp}/locality-shadow.c -o /dev/null";
const JAVA: &str = "mkdir -p ${TMPDIR:-/tmp}/locality-shadow; cd ${TMPDIR:-/tmp}/locality-shadow; echo 'class T { public \
    static void main(String[] a) { java.util.HashMap<String, Double> m = new java.util.HashMap<>(); for (int n = 0; n < \
    200000000; n++) { m.merge(\"k\" + n % 3000, Math.sqrt(n), Double::sum); } System.out.println(m.size()); } }' > T.java; \
    exec java -XX:-UsePerfData T.java";
