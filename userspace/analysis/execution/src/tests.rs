//! Skeletons as texts: what is printed is parsed back, wrong ones are refused in words, and expected
//! repetitions are those of programs that are counted by hand.

use crate::parse::parse;
use crate::tree::evaluate;

/// `for i in 0..n { for j in 0..i { b } }`, with a call of `f(i)` in the outer loop.
const TRIANGLE: &str = r#"skeleton 1
file "a" "00ff"
fn "main" @ "a":10 calls 1 {
  input `n` = 100 "told"
  var iv20_rax = `0` step `1` in L20
  b10: comp int 2 -> b20:1
  loop L20 bound `n` test b40 exits 1 {
    b20: comp int 3; call "a":80 x 1 arg0 = `iv20_rax + 1` -> b30:1
    loop L30 bound `iv20_rax + 1` test b30 exits 1 {
      b30: comp fp64 1; ld 8 x 2 -> b30:0.5 b40:0.5
    }
    b40: comp int 1 branch 1 -> b20:0.9 b50:0.1
  }
  b50: comp int 1
}
fn "f" @ "a":80 calls 0 {
  loop L80 bound `arg0` test b80 exits 1 {
    b80: comp int 1 -> b80:0.5 b90:0.5
  }
  b90:
}
"#;

#[test]
fn what_is_printed_is_parsed_back() {
    let skeleton = parse(TRIANGLE).unwrap();
    assert_eq!(parse(&skeleton.print()).unwrap(), skeleton);
    let with_bom = format!("\u{feff}{}", TRIANGLE.replace('\n', "\r\n"));
    assert_eq!(parse(&with_bom).unwrap(), skeleton);
}

#[test]
fn triangles_are_integrated_not_averaged() {
    let mut skeleton = parse(TRIANGLE).unwrap();
    let expected = evaluate(&skeleton).unwrap();
    let count = |function, label| expected.blocks.get(&(function, label)).copied().unwrap_or(0.0);
    assert_eq!(count(0, 0x20), 100.0);
    assert!((count(0, 0x30) - 5050.0).abs() < 1.0, "{}", count(0, 0x30));
    assert!((count(0, 0x50) - 1.0).abs() < 1e-9);
    assert!((count(1, 0x80) - 5050.0).abs() < 1.0, "{}", count(1, 0x80));
    assert_eq!(expected.calls[1].round(), 100.0);
    skeleton.functions[0].inputs[0].values = vec![(9.0, 1.0)];
    let expected = evaluate(&skeleton).unwrap();
    assert!((expected.blocks[&(0, 0x30)] - 45.0).abs() < 1e-9);
    assert!(expected.below_zero.is_empty());
    skeleton.functions[0].inputs[0].values = vec![(-5.0, 1.0)];
    let below_zero = evaluate(&skeleton).unwrap().below_zero;
    assert!(below_zero.values().any(|least| *least == -5.0), "{below_zero:?}");
}

#[test]
fn early_exits_follow_the_formula_for_breaks() {
    let text = r#"skeleton 1
fn "main" @ "a":10 calls 1 {
  loop L10 bound `1000` test b20 exits 2 {
    b10: -> b20:0.99 b30:0.01
    b20: -> b10:0.5 b30:0.5
  }
  b30:
}
"#;
    let expected = evaluate(&parse(text).unwrap()).unwrap();
    let formula = (1.0 - 0.99_f64.powi(1000)) / 0.01;
    assert!((expected.trips[&(0, 0x10)] - formula).abs() < 1e-6);
    assert!((expected.blocks[&(0, 0x30)] - 1.0).abs() < 1e-6);
}

#[test]
fn recursion_is_a_fixed_point_or_refused() {
    let text = |share: f64| {
        format!(
            "skeleton 1\nfn \"f\" @ \"a\":10 calls 1 {{\n  b10: -> b20:{share} b30:{}\n  b20: call \"a\":10 x 2 -> b30:1\n  b30:\n}}\n",
            1.0 - share
        )
    };
    let expected = evaluate(&parse(&text(0.25)).unwrap()).unwrap();
    assert!((expected.calls[0] - 2.0).abs() < 1e-6);
    let refused = evaluate(&parse(&text(0.75)).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("recursion"), "{refused}");
}

#[test]
fn an_irreducible_region_is_solved_flat() {
    let text = r#"skeleton 1
fn "f" @ "a":10 calls 1 {
  b10: -> b20:0.5 b30:0.5
  b20: -> b30:1
  b30: -> b20:0.75 b40:0.25
  b40:
}
"#;
    let expected = evaluate(&parse(text).unwrap()).unwrap();
    assert!((expected.blocks[&(0, 0x30)] - 4.0).abs() < 1e-6, "{:?}", expected.blocks);
    assert!((expected.blocks[&(0, 0x40)] - 1.0).abs() < 1e-6);
}

#[test]
fn a_loop_that_nothing_ends_is_refused_and_an_unknown_bound_told() {
    let text = |seen: &str| {
        format!(
            "skeleton 1\nfn \"f\" @ \"a\":10 calls 1 {{\n  loop L10 bound `arg0` test b10{seen} exits 1 {{\n    b10: -> b10:1 b20:0\n  }}\n  b20:\n}}\n"
        )
    };
    let refused = evaluate(&parse(&text("")).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("L10 of f") && refused.contains("seen N"), "{refused}");
    let expected = evaluate(&parse(&text(" seen 70 +- 3")).unwrap()).unwrap();
    assert_eq!(expected.trips[&(0, 0x10)], 70.0);
    assert_eq!(expected.unknown[&(0, 0x10)], "arg0 has no value");
    assert!((expected.blocks[&(0, 0x20)] - 1.0).abs() < 1e-9);
}

#[test]
fn wrong_texts_are_refused_with_line_and_column() {
    let change = |from: &str, to: &str| {
        assert!(TRIANGLE.contains(from), "{from}");
        parse(&TRIANGLE.replacen(from, to, 1)).unwrap_err().to_string()
    };
    for (from, to, expected) in [
        ("skeleton 1", "skeleton 2", "line 1, column 10: only version 1"),
        ("  b50:", "  jump\n  b50:", "line 14, column 3: a loop, a block or `}` was expected, not `jump`"),
        ("  b50: comp int 1\n}", "  b50: comp int 1\n", "`fn`"),
        ("b50: comp", "b10: comp", "the block b10 is there twice"),
        ("b20:0.9 b50:0.1", "b20:0.9 b51:0.1", "there is no block b51"),
        ("b20:0.9 b50:0.1", "b20:0.2 b50:0.1", "sum to 0.30000000000000004, not to 1"),
        ("b20:0.9 b50:0.1", "b20:0.9 b50:0.8", "sum to 1.7000000000000002, not to 1"),
        ("int 3", "int -3", "line 8, column 19: a count must not be negative"),
        ("int 3", "int NaN", "a number from 0 to"),
        ("int 3", "int 1e300", "a number from 0 to"),
        ("= 100", "= 1e308", "a number from 0 to"),
        ("bound `n`", "bound `ceil(n, 0)`", "a division by zero"),
        ("bound `n`", "bound `n +`", "a number, a name"),
        ("bound `n`", "bound `sqrt(n, 2)`", "there is no operation `sqrt`"),
        ("= `0` step", "= `iv20_rax` step", "the variable iv20_rax depends on itself"),
        ("in L20", "in L21", "L21, which is not there"),
        ("loop L30", "loop L20", "the loop L20 is there twice"),
        ("\"told\"", "\"told", "does not end"),
        ("= 100 ", "= { 1: 0.5, 2: 0.4 } ", "sum to 0.9, not to 1"),
        ("`n` =", "`n + 1` =", "an input is one name"),
        ("ld 8", "ld 0", "at least 1"),
        ("@ \"a\":80", "@ \"a\":10", "the function f is there twice"),
        ("exits 1 {", "exits 1 vector 0 {", "the number of lanes must be a whole number of at least 1"),
    ] {
        let error = change(from, to);
        assert!(error.contains(expected) && error.starts_with("line "), "{from} → {to}: {error}");
    }
}

#[test]
fn deep_nests_and_odd_bytes_end_in_a_sentence() {
    let mut deep = "skeleton 1\nfn \"f\" @ \"a\":10 calls 1 {\n".to_owned();
    for number in 0..10_000 {
        deep.push_str(&format!("loop L{number:x} exits 1 {{ b{number:x}:\n"));
    }
    assert!(parse(&deep).unwrap_err().to_string().contains("200 loops"));
    let nested = format!("`{}n{}`", "[".repeat(5000), "]".repeat(5000));
    let text = TRIANGLE.replacen("`n`", &nested, 1);
    assert!(parse(&text).unwrap_err().to_string().contains("nested too deeply"));
    assert!(parse("").unwrap_err().to_string().contains("`skeleton` was expected"));
}

/// Texts changed at random never end the parser, and what it accepts is printed and parsed to the same.
#[test]
fn changed_texts_never_end_the_parser() {
    let mut random = fastrand::Rng::with_seed(7);
    let pieces =
        ["{", "}", "`", "\"", "b20", "loop L20", "->", "1e9", "-", "x", "arg0", "\u{e4}", "\n", "[", "("];
    for _ in 0..4000 {
        let mut text = TRIANGLE.to_owned();
        for _ in 0..random.usize(1..4) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let at = places[random.usize(..places.len())];
            match random.u8(..3) {
                0 => text.insert_str(at, pieces[random.usize(..pieces.len())]),
                1 => drop(text.remove(at)),
                _ => text.truncate(at.max(1)),
            }
            if text.is_empty() {
                break;
            }
        }
        if let Ok(skeleton) = parse(&text) {
            assert_eq!(parse(&skeleton.print()).unwrap(), skeleton, "{text}");
            let _ = evaluate(&skeleton);
        }
    }
}
