//! Kinds of data objects of Rust. Lines as in kinds.c.

use std::cell::Cell;
use std::hint::black_box;

#[derive(Clone, Copy)]
#[repr(C)]
struct Particle {
    position: (f64, f64),
    charge: i32,
}

enum Shape {
    Circle { radius: f64 },
    Square(u32, f64),
    Nothing,
}

struct World {
    particles: Vec<Particle>,
    name: Box<[u8; 32]>,
}

static mut COUNTER: u64 = 1;
static TABLE: [u32; 64] = [7; 64];

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(5) };
}

mod inner {
    pub static mut NESTED: [super::Particle; 3] = [super::Particle { position: (1.0, 2.0), charge: 3 }; 3];
}

fn tell<T>(kind: &str, address: *const T, name: &str, field: &str, type_name: &str) {
    println!("{kind} {address:p} {name}|{field}|{type_name}");
}

#[inline(never)]
fn wait_here() {
    println!("ready");
    loop {
        std::thread::park();
    }
}

fn main() {
    // SAFETY: the program has one thread.
    unsafe {
        COUNTER += 1;
        tell("static", &raw const COUNTER, "kinds::COUNTER", "", "u64");
        let nested = &raw const inner::NESTED[1].charge;
        tell("static", nested, "kinds::inner::NESTED", "[].charge", "[Particle; 3]");
    }
    tell("static", &black_box(&TABLE)[9], "kinds::TABLE", "[]", "[u32; 64]");
    let local = Particle { position: (1.0, 2.0), charge: 3 };
    tell("stack", &black_box(&local).position.1, "local", ".position.1", "Particle");
    let circle = Shape::Circle { radius: 1.0 };
    let square = Shape::Square(black_box(2), 3.0);
    let nothing = Shape::Nothing;
    if let Shape::Square(side, _) = black_box(&square) {
        tell("stack", side, "square", ".Square.0", "Shape");
    }
    if let Shape::Circle { radius } = black_box(&circle) {
        tell("stack", radius, "circle", ".(Circle|Square)", "Shape");
    }
    black_box(&nothing);
    let world = World { particles: vec![local; 100], name: Box::new([0; 32]) };
    tell("heap", &world.particles[17].charge, "world.particles", "[].charge", "Particle");
    tell("heap", &world.name[5], "world.name", "[]", "[u8; 32]");
    let numbers: Vec<f64> = vec![0.5; 1000];
    tell("heap", &black_box(&numbers)[10], "numbers", "[]", "f64");
    OWN.with(|own| tell("thread-local", own.as_ptr(), "kinds::OWN", ".val.value.value.value", "Storage<core::cell::Cell<u64>>"));
    wait_here();
    black_box((&world, &numbers));
}
