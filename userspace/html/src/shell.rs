//! The page around the tables: head with a content security policy,
//! text for readers without scripts, the tables as text, the script.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use locality_report::schema::{Estimate, Report, number::Number, place::Place};
use sha2::{Digest as _, Sha256};

use crate::{SCRIPT, STYLE};

/// Pairs for readers without scripts.
const PAIRS: usize = 20;
/// Letters of a name and of a sentence in the part without scripts; a name may have thousands.
const NAME: usize = 160;
const SENTENCE: usize = 800;

/// Unpacks the script, which is deflated as the tables are, and starts it.
const LOADER: &str = "(async()=>{const d=document,p=Uint8Array.from(atob(d.getElementById('script').textContent),\
c=>c.charCodeAt(0)),s=d.createElement('script');s.textContent=await new Response(new Blob([p]).stream()\
.pipeThrough(new DecompressionStream('deflate-raw'))).text();d.body.append(s)})().catch(e=>{\
document.getElementById('app').textContent=e.message+'. A browser of 2024 or later shows this report; \
locality-bpf report FILE prints it as text.'})";

/// The page. Only the loader, the script and the style with
/// hashes in the policy can run, and nothing can be fetched.
pub(crate) fn page(title: &str, fallback: &str, data: &str) -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    let [loader, script, style] = [LOADER, SCRIPT, STYLE].map(hash);
    let packed = deflated(SCRIPT.as_bytes());
    let title = escaped(&shortened(title));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src 'sha256-{loader}' 'sha256-{script}'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title} · locality-bpf</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <noscript>\n{fallback}</noscript>\n<div id=\"app\"></div>\n\
         <script type=\"text/plain\" id=\"data\">{data}</script>\n\
         <script type=\"text/plain\" id=\"script\">{packed}</script>\n<script>{LOADER}</script>\n</body>\n\
         </html>\n"
    )
}

/// Deflated bytes as text.
pub(crate) fn deflated(bytes: &[u8]) -> String {
    /// Larger files compress to hardly less at the best level, in three times the time.
    const LARGE: usize = 4 << 20;
    STANDARD.encode(miniz_oxide::deflate::compress_to_vec(bytes, if bytes.len() > LARGE { 6 } else { 9 }))
}

/// Text inside an element, without markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Controls of the direction of text could reorder the words around a name.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => {
                out.push('\u{fffd}');
            }
            letter if letter.is_control() && letter != '\n' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

fn shortened(text: &str) -> String {
    cut(text, NAME)
}

fn cut(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A name as a separate element, for any direction of text.
fn name(text: &str) -> String {
    format!("<bdi>{}</bdi>", escaped(&shortened(text)))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{:.1} %", value * 100.0))
}

fn times(estimate: &Estimate) -> String {
    let of = |number: Number| number.finite().map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
    let [low, high] = estimate.ci95;
    format!("{} times as fast [{}–{}]", of(estimate.value), of(low), of(high))
}

fn place(place: Option<&Place>) -> String {
    let Some(place) = place else { return "unknown".to_owned() };
    let function = place.function.as_deref().unwrap_or("unknown");
    let at = place.file.as_deref().map(|file| {
        let base = file.rsplit('/').next().unwrap_or(file);
        let line = place.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!(" {}{line}", name(base))
    });
    format!("{}{}", name(function), at.unwrap_or_default())
}

/// Verdict, advice and pairs as plain HTML.
pub(crate) fn fallback(report: &Report) -> String {
    let mut out = format!("<h1>Data locality of {}</h1>\n", name(&report.run.command));
    let paragraph = |text: &str| format!("<p>{}</p>\n", escaped(&cut(text, SENTENCE)));
    out.push_str(&paragraph(
        "Without scripts this page shows the verdict, the advice and the heaviest pairs only.",
    ));
    if let Some(why) = &report.empty {
        out.push_str(&paragraph(why));
    }
    if let Some(verdict) = &report.verdict {
        let grade = format!("{:?}", verdict.grade).to_lowercase();
        let probably = if verdict.probably { "probably " } else { "" };
        out.push_str(&paragraph(&format!("Locality: {probably}{grade}. {}", verdict.sentence)));
    }
    report.notices.iter().for_each(|notice| out.push_str(&paragraph(notice)));
    out.push_str("<h2>What to do</h2>\n");
    match (&report.advice, &report.advice_none) {
        (Some(advice), _) if !advice.is_empty() => {
            out.push_str("<ol>\n");
            for advice in advice {
                let evidence = escaped(&cut(&advice.evidence.join(" "), SENTENCE));
                let title = escaped(&cut(&advice.title, SENTENCE));
                let gain = escaped(&times(&advice.gain.speedup));
                out.push_str(&format!("<li><strong>{title}</strong>: {gain}. {evidence}</li>\n"));
            }
            out.push_str("</ol>\n");
        }
        (_, Some(why)) => out.push_str(&paragraph(why)),
        _ => out.push_str(&paragraph("This report has no advice.")),
    }
    let rows = report.pairs.iter().take(PAIRS).map(|pair| {
        format!(
            "<tr><td>{}</td><td>{} → {}</td><td>{}</td></tr>\n",
            percent(pair.weight.finite()),
            place(pair.used.place.as_ref()),
            place(pair.reuse.place.as_ref()),
            pair.object.as_ref().map(|object| name(&object.name)).unwrap_or_default()
        )
    });
    let head = "<h2>Pairs of use and reuse</h2>\n<table>\n\
                <tr><th>of all reuses</th><th>use → reuse</th><th>data</th></tr>\n";
    out.push_str(head);
    out.extend(rows);
    out.push_str("</table>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let of = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| STANDARD.encode(text));
        assert_eq!(of, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
        assert_eq!(STANDARD.encode([0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn names_cannot_be_markup() {
        let hostile = "</script><img src=x onerror=alert(1)>\u{202e}\u{7}'\"&";
        let text = escaped(hostile);
        assert!(!text.contains(['<', '>', '"', '\'', '\u{202e}', '\u{7}']), "{text}");
        assert!(shortened(&"é".repeat(70_000)).chars().count() == NAME + 1);
    }

    #[test]
    fn what_is_embedded_cannot_end_its_element() {
        assert!(!LOADER.to_lowercase().contains("</script") && !LOADER.contains("<!--"));
        assert!(!STYLE.to_lowercase().contains("</style"));
        for text in [LOADER, SCRIPT, STYLE] {
            assert!(!text.contains('\r') && !text.contains('\0'), "the parser would change it");
        }
    }

    #[test]
    fn script_and_style_are_small() {
        let page = page("", "", "");
        assert!(page.len() < 80_000, "{} bytes", page.len());
        let script = page.split("id=\"script\">").nth(1).unwrap().split('<').next().unwrap();
        let bytes = miniz_oxide::inflate::decompress_to_vec(&STANDARD.decode(script).unwrap()).unwrap();
        assert_eq!(bytes, SCRIPT.as_bytes());
    }

    #[test]
    fn deflated_bytes_are_raw_deflate() {
        let text = deflated(b"abcabcabcabc");
        assert!(!text.contains(['<', '&']) && text.len().is_multiple_of(4));
    }
}
