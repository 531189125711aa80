//! Small programs as generators of their accesses: (address, size), in the order in which compiled code would make them.

/// Receives accesses.
pub type Out<'a> = &'a mut dyn FnMut(u64, u64);

/// Makes the accesses of a program.
pub type Kernel = fn(Out);

/// Name and generator of each kernel; each makes 5 to 40 million accesses.
pub const ALL: &[(&str, Kernel)] = &[
    ("stream", stream),
    ("matmul", matmul),
    ("matmul-blocked", matmul_blocked),
    ("transpose", transpose),
    ("stencil", stencil),
    ("fft", fft),
    ("quicksort", quicksort),
    ("mergesort", mergesort),
    ("list", list),
    ("hash", hash),
    ("bfs", bfs),
    ("zipf", zipf),
    ("random", random),
    ("spmv", spmv),
    ("btree", btree),
    ("phases", phases),
    ("vector", vector),
];

const A: u64 = 0x1000_0000;
const B: u64 = 0x5000_0000;
const C: u64 = 0x9000_0000;
const STACK: u64 = 0x7fff_0000;

fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(0x10CA)
}

fn stream(out: Out) {
    for _ in 0..10 {
        for i in 0..500_000 {
            out(B + 8 * i, 8);
            out(C + 8 * i, 8);
            out(A + 8 * i, 8);
        }
    }
}

fn matmul(out: Out) {
    let n = 180;
    for i in 0..n {
        for j in 0..n {
            for k in 0..n {
                out(A + 8 * (i * n + k), 8);
                out(B + 8 * (k * n + j), 8);
            }
            out(C + 8 * (i * n + j), 8);
        }
    }
}

fn matmul_blocked(out: Out) {
    let (n, b) = (192, 24);
    for ii in (0..n).step_by(b) {
        for jj in (0..n).step_by(b) {
            for kk in (0..n).step_by(b) {
                for i in ii..ii + b {
                    for j in jj..jj + b {
                        out(C + 8 * (i * n + j) as u64, 8);
                        for k in kk..kk + b {
                            out(A + 8 * (i * n + k) as u64, 8);
                            out(B + 8 * (k * n + j) as u64, 8);
                        }
                        out(C + 8 * (i * n + j) as u64, 8);
                    }
                }
            }
        }
    }
}

fn transpose(out: Out) {
    let n = 1000;
    for _ in 0..6 {
        for i in 0..n {
            for j in 0..n {
                out(A + 8 * (i * n + j), 8);
                out(B + 8 * (j * n + i), 8);
            }
        }
    }
}

fn stencil(out: Out) {
    let n = 600;
    for step in 0..8 {
        let (from, to) = if step % 2 == 0 { (A, B) } else { (B, A) };
        for i in 1..n - 1 {
            for j in 1..n - 1 {
                for (di, dj) in [(0, 1), (2, 1), (1, 0), (1, 2), (1, 1)] {
                    out(from + 8 * ((i + di - 1) * n + j + dj - 1), 8);
                }
                out(to + 8 * (i * n + j), 8);
            }
        }
    }
}

fn fft(out: Out) {
    let n = 1_u64 << 17;
    for i in 0..n {
        let j = i.reverse_bits() >> 47;
        if i < j {
            for at in [i, j] {
                out(A + 16 * at, 16);
            }
            for at in [i, j] {
                out(A + 16 * at, 16);
            }
        }
    }
    let mut half = 1;
    while half < n {
        for start in (0..n).step_by(2 * half as usize) {
            for k in 0..half {
                out(B + 16 * (k * (n / 2 / half)), 16);
                out(A + 16 * (start + k), 16);
                out(A + 16 * (start + k + half), 16);
                out(A + 16 * (start + k), 16);
                out(A + 16 * (start + k + half), 16);
            }
        }
        half *= 2;
    }
}

fn quicksort(out: Out) {
    let mut random = rng();
    let mut data: Vec<u64> = (0..400_000).map(|_| random.u64(..)).collect();
    let mut pending = vec![(0_usize, data.len())];
    while let Some((low, high)) = pending.pop() {
        out(STACK - 16 * pending.len() as u64, 16);
        if high - low < 2 {
            continue;
        }
        let middle = (low + high - 1) / 2;
        let pivot = data[middle];
        out(A + 8 * middle as u64, 8);
        let (mut i, mut j) = (low as isize - 1, high as isize);
        loop {
            loop {
                i += 1;
                out(A + 8 * i as u64, 8);
                if data[i as usize] >= pivot {
                    break;
                }
            }
            loop {
                j -= 1;
                out(A + 8 * j as u64, 8);
                if data[j as usize] <= pivot {
                    break;
                }
            }
            if i >= j {
                break;
            }
            data.swap(i as usize, j as usize);
            out(A + 8 * i as u64, 8);
            out(A + 8 * j as u64, 8);
        }
        out(STACK - 16 * pending.len() as u64, 16);
        pending.push((low, j as usize + 1));
        pending.push((j as usize + 1, high));
    }
}

fn mergesort(out: Out) {
    let mut random = rng();
    let n = 1 << 18;
    let (mut data, mut other): (Vec<u32>, Vec<u32>) = ((0..n).map(|_| random.u32(..)).collect(), vec![0; n]);
    let (mut from, mut to) = (A, B);
    let mut width = 1;
    while width < n {
        for start in (0..n).step_by(2 * width) {
            let (mut i, mut j) = (start, start + width);
            for (k, merged) in other.iter_mut().enumerate().skip(start).take(2 * width) {
                let left = i < start + width && (j >= start + 2 * width || data[i] <= data[j]);
                out(from + 4 * i.min(n - 1) as u64, 4);
                out(from + 4 * j.min(n - 1) as u64, 4);
                let source = if left { &mut i } else { &mut j };
                *merged = data[*source];
                *source += 1;
                out(to + 4 * k as u64, 4);
            }
        }
        std::mem::swap(&mut data, &mut other);
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
}

fn list(out: Out) {
    let mut order: Vec<u64> = (0..200_000).collect();
    rng().shuffle(&mut order);
    for _ in 0..40 {
        for node in &order {
            out(A + 32 * node, 8);
            out(A + 32 * node + 8, 8);
        }
    }
}

fn hash(out: Out) {
    let mut random = rng();
    let slots = 1_u64 << 17;
    for _ in 0..3_000_000 {
        let key = (random.f64().powi(3) * 300_000.0) as u64;
        let slot = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 47;
        out(STACK, 8);
        out(A + 8 * (slot % slots), 8);
        for hop in 0..=key % 3 {
            out(B + 48 * ((key + hop * 7919) % 300_000), 8);
        }
        out(B + 48 * key + 16, 8);
    }
}

fn bfs(out: Out) {
    let mut random = rng();
    let (n, degree) = (100_000_u64, 8_u64);
    let edges: Vec<u64> = (0..n * degree).map(|_| random.u64(..n)).collect();
    for root in 0..6 {
        let mut seen = vec![false; n as usize];
        let mut queue = std::collections::VecDeque::from([root * 997]);
        let (mut head, mut tail) = (0, 1);
        while let Some(node) = queue.pop_front() {
            out(STACK - 8 * (head % 8), 8);
            out(C + 4 * head, 4);
            head += 1;
            out(0xd000_0000 + 8 * node, 8);
            for i in 0..degree {
                let next = edges[(node * degree + i) as usize];
                out(A + 4 * (node * degree + i), 4);
                out(B + next, 1);
                if !seen[next as usize] {
                    seen[next as usize] = true;
                    out(B + next, 1);
                    out(C + 4 * tail, 4);
                    tail += 1;
                    queue.push_back(next);
                }
            }
        }
    }
}

fn zipf(out: Out) {
    let mut random = rng();
    for _ in 0..10_000_000 {
        let rank = (1_000_000.0_f64.powf(random.f64())) as u64;
        out(A + 8 * (rank.wrapping_mul(0x9E37_79B9) % 1_048_576), 8);
    }
}

fn random(out: Out) {
    let mut random = rng();
    (0..8_000_000).for_each(|_| out(A + 8 * random.u64(..200_000), 8));
}

fn spmv(out: Out) {
    let mut random = rng();
    let (rows, each) = (60_000_u64, 9_u64);
    let columns: Vec<u64> = (0..rows * each)
        .map(|i| if i % 3 == 0 { random.u64(..rows) } else { (i / each + random.u64(..50)) % rows })
        .collect();
    for _ in 0..8 {
        for row in 0..rows {
            out(0xd000_0000 + 4 * row, 4);
            for i in row * each..(row + 1) * each {
                out(A + 4 * i, 4);
                out(0x2000_0000 + 8 * i, 8);
                out(B + 8 * columns[i as usize], 8);
            }
            out(C + 8 * row, 8);
        }
    }
}

fn btree(out: Out) {
    let mut random = rng();
    let leaves = 32_u64.pow(4);
    for _ in 0..400_000 {
        let leaf = random.u64(..leaves);
        let mut base = A;
        for level in (0..=4).rev() {
            let node = leaf / 32_u64.pow(level);
            let child = node % 32;
            out(STACK, 8);
            // A binary search among 32 keys of 8 bytes.
            let (mut low, mut high) = (0, 32);
            while high - low > 1 {
                let middle = (low + high) / 2;
                out(base + 512 * (node / 32) + 8 * middle, 8);
                if child < middle { high = middle } else { low = middle }
            }
            out(base + 512 * (node / 32) + 256 + 8 * child, 8);
            base += 0x1000_0000;
        }
    }
}

fn phases(out: Out) {
    let mut random = rng();
    for round in 0..4 {
        (0..1_000_000).for_each(|i| out(A + 8 * (i % 300), 8));
        (0..1_000_000).for_each(|i| out(B + 64 * (i % (20_000 + 3000 * round)), 8));
        (0..500_000).for_each(|_| out(C + 8 * random.u64(..50_000), 8));
        (0..1_000_000).for_each(|i| out(A + 8 * i, 8));
    }
}

fn vector(out: Out) {
    for round in 0..30 {
        let n = 20_000 + 2_000 * (round % 5);
        for i in 0..n {
            out(A + 32 * i, 32);
            out(B + 32 * i, 32);
            out(A + 32 * i, 32);
            out(STACK, 8);
        }
    }
}
