//! Small programs as generators of accesses, each with the accessing place in the code.

/// Receives accesses: place, address, size. Says whether it wants more.
pub type Out<'a> = &'a mut dyn FnMut(u8, u64, u64) -> bool;

/// Makes accesses of a program until there are enough.
pub type Kernel = fn(Out) -> Option<()>;

/// Name and generator of each kernel; all go on until they are stopped.
pub const ALL: &[(&str, Kernel)] = &[
    ("stream", stream),
    ("matmul", matmul),
    ("blocked", blocked),
    ("transpose", transpose),
    ("stencil", stencil),
    ("list", list),
    ("hash", hash),
    ("random", random),
    ("zipf", zipf),
    ("btree", btree),
    ("sort", sort),
    ("spmv", spmv),
    ("phases", phases),
    ("vector", vector),
    ("interpreter", interpreter),
    ("log", log),
];

const A: u64 = 0x1000_0000;
const B: u64 = 0x5000_0000;
const C: u64 = 0x9000_0000;
const STACK: u64 = 0x7fff_0000;

fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(0x10CA)
}

/// One access; ends the kernel after enough accesses.
macro_rules! touch {
    ($out:expr, $place:expr, $address:expr, $size:expr) => {
        $out($place, $address, $size).then_some(())?
    };
}

fn stream(out: Out) -> Option<()> {
    loop {
        for i in 0..300_000 {
            touch!(out, 0, B + 8 * i, 8);
            touch!(out, 1, C + 8 * i, 8);
            touch!(out, 2, A + 8 * i, 8);
        }
    }
}

fn matmul(out: Out) -> Option<()> {
    let n = 150;
    loop {
        for i in 0..n {
            for j in 0..n {
                for k in 0..n {
                    touch!(out, 0, A + 8 * (i * n + k), 8);
                    touch!(out, 1, B + 8 * (k * n + j), 8);
                }
                touch!(out, 2, C + 8 * (i * n + j), 8);
            }
        }
    }
}

fn blocked(out: Out) -> Option<()> {
    let (n, b) = (192_usize, 24);
    loop {
        for (ii, jj, kk) in triples(n / b) {
            for (i, j) in pairs(b) {
                let (i, j) = (ii * b + i, jj * b + j);
                touch!(out, 0, C + 8 * (i * n + j) as u64, 8);
                for k in kk * b..kk * b + b {
                    touch!(out, 1, A + 8 * (i * n + k) as u64, 8);
                    touch!(out, 2, B + 8 * (k * n + j) as u64, 8);
                }
                touch!(out, 3, C + 8 * (i * n + j) as u64, 8);
            }
        }
    }
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n * n).map(move |at| (at / n, at % n))
}

fn triples(n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..n * n * n).map(move |at| (at / n / n, at / n % n, at % n))
}

fn transpose(out: Out) -> Option<()> {
    let n = 700;
    loop {
        for i in 0..n {
            for j in 0..n {
                touch!(out, 0, A + 8 * (i * n + j), 8);
                touch!(out, 1, B + 8 * (j * n + i), 8);
            }
        }
    }
}

fn stencil(out: Out) -> Option<()> {
    let n = 500;
    for step in 0.. {
        let (from, to) = if step % 2 == 0 { (A, B) } else { (B, A) };
        for i in 1..n - 1 {
            for j in 1..n - 1 {
                for (at, (di, dj)) in (0..).zip([(0, 1), (2, 1), (1, 0), (1, 2), (1, 1)]) {
                    touch!(out, at, from + 8 * ((i + di - 1) * n + j + dj - 1), 8);
                }
                touch!(out, 5, to + 8 * (i * n + j), 8);
            }
        }
    }
    None
}

fn list(out: Out) -> Option<()> {
    let mut order: Vec<u64> = (0..100_000).collect();
    rng().shuffle(&mut order);
    loop {
        for node in &order {
            touch!(out, 0, A + 32 * node, 8);
            touch!(out, 1, A + 32 * node + 8, 8);
        }
    }
}

fn hash(out: Out) -> Option<()> {
    let mut random = rng();
    loop {
        let key = (random.f64().powi(3) * 300_000.0) as u64;
        let slot = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 47;
        touch!(out, 0, STACK, 8);
        touch!(out, 1, A + 8 * slot, 8);
        for hop in 0..=key % 3 {
            touch!(out, 2, B + 48 * ((key + hop * 7919) % 300_000), 8);
        }
        touch!(out, 3, B + 48 * key + 16, 8);
    }
}

fn random(out: Out) -> Option<()> {
    let mut random = rng();
    loop {
        touch!(out, 0, A + 8 * random.u64(..200_000), 8);
    }
}

fn zipf(out: Out) -> Option<()> {
    let mut random = rng();
    loop {
        let rank = 1_000_000.0_f64.powf(random.f64()) as u64;
        touch!(out, 0, A + 8 * (rank.wrapping_mul(0x9E37_79B9) % 1_048_576), 8);
    }
}

fn btree(out: Out) -> Option<()> {
    let mut random = rng();
    loop {
        let leaf = random.u64(..32_u64.pow(4));
        for level in (0..=4).rev() {
            let node = leaf / 32_u64.pow(level);
            let base = A + 0x1000_0000 * u64::from(4 - level) + 512 * (node / 32);
            touch!(out, 0, STACK, 8);
            let (mut low, mut high) = (0, 32);
            while high - low > 1 {
                let middle = (low + high) / 2;
                touch!(out, 1, base + 8 * middle, 8);
                if node % 32 < middle { high = middle } else { low = middle }
            }
            touch!(out, 2, base + 256 + 8 * (node % 32), 8);
        }
    }
}

fn sort(out: Out) -> Option<()> {
    let mut random = rng();
    loop {
        let mut data: Vec<u64> = (0..200_000).map(|_| random.u64(..)).collect();
        let mut pending = vec![(0_usize, data.len())];
        while let Some((low, high)) = pending.pop() {
            touch!(out, 0, STACK - 16 * pending.len() as u64, 16);
            if high - low < 2 {
                continue;
            }
            let middle = (low + high - 1) / 2;
            let pivot = data[middle];
            touch!(out, 1, A + 8 * middle as u64, 8);
            let (mut i, mut j) = (low as isize - 1, high as isize);
            loop {
                i += 1;
                touch!(out, 2, A + 8 * i as u64, 8);
                while data[i as usize] < pivot {
                    i += 1;
                    touch!(out, 2, A + 8 * i as u64, 8);
                }
                j -= 1;
                touch!(out, 3, A + 8 * j as u64, 8);
                while data[j as usize] > pivot {
                    j -= 1;
                    touch!(out, 3, A + 8 * j as u64, 8);
                }
                if i >= j {
                    break;
                }
                data.swap(i as usize, j as usize);
                touch!(out, 4, A + 8 * i as u64, 8);
                touch!(out, 5, A + 8 * j as u64, 8);
            }
            touch!(out, 6, STACK - 16 * pending.len() as u64, 16);
            pending.push((low, j as usize + 1));
            pending.push((j as usize + 1, high));
        }
    }
}

fn spmv(out: Out) -> Option<()> {
    let mut random = rng();
    let (rows, each) = (30_000_u64, 9_u64);
    let columns: Vec<u64> = (0..rows * each)
        .map(|i| if i % 3 == 0 { random.u64(..rows) } else { (i / each + random.u64(..50)) % rows })
        .collect();
    loop {
        for row in 0..rows {
            touch!(out, 0, 0xd000_0000 + 4 * row, 4);
            for i in row * each..(row + 1) * each {
                touch!(out, 1, A + 4 * i, 4);
                touch!(out, 2, 0x2000_0000 + 8 * i, 8);
                touch!(out, 3, B + 8 * columns[i as usize], 8);
            }
            touch!(out, 4, C + 8 * row, 8);
        }
    }
}

/// Loops of unlike rates and distances, one after another, at the same place at last.
fn phases(out: Out) -> Option<()> {
    let mut random = rng();
    for round in 0.. {
        for i in 0..700_000 {
            touch!(out, 0, A + 8 * (i % 300), 8);
        }
        for i in 0..700_000 {
            touch!(out, 1, B + 64 * (i % (20_000 + 3000 * round)), 8);
        }
        for _ in 0..400_000 {
            touch!(out, 2, C + 8 * random.u64(..50_000), 8);
        }
        for i in 0..700_000 {
            touch!(out, 0, A + 8 * i, 8);
        }
    }
    None
}

fn vector(out: Out) -> Option<()> {
    for round in 0.. {
        let n = 20_000 + 2_000 * (round % 5);
        for i in 0..n {
            touch!(out, 0, A + 32 * i, 32);
            touch!(out, 1, B + 32 * i + 16, 32);
            touch!(out, 2, A + 32 * i, 32);
            touch!(out, 3, STACK, 8);
        }
    }
    None
}

/// Most accesses on a small stack and in a table of operations, some in a heap with many sizes of
/// working set.
fn interpreter(out: Out) -> Option<()> {
    let mut random = rng();
    let mut depth = 0_u64;
    loop {
        let operation = (random.f64().powi(2) * 40.0) as u64;
        touch!(out, 0, 0xe000_0000 + random.u64(..2_000), 1);
        touch!(out, 1, 0xe100_0000 + 8 * operation, 8);
        if random.bool() && depth < 500 {
            depth += 1;
            touch!(out, 2, STACK - 8 * depth, 8);
        } else if depth > 0 {
            touch!(out, 3, STACK - 8 * depth, 8);
            depth -= 1;
        }
        if operation < 4 {
            let object = 100_000.0_f64.powf(random.f64()) as u64;
            for field in 0..1 + operation {
                touch!(out, 4 + field as u8, C + 40 * object + 8 * field, 8);
            }
        }
    }
}

/// Writes an unread log, beside a small table.
fn log(out: Out) -> Option<()> {
    let mut random = rng();
    let mut end = 0_u64;
    loop {
        for _ in 0..3 {
            touch!(out, 0, B + 8 * random.u64(..3_000), 8);
        }
        touch!(out, 1, STACK, 8);
        touch!(out, 2, A + 8 * end, 8);
        end += 1;
    }
}
