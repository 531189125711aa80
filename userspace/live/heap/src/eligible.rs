//! Programs that may be launched with the recorder of allocations, and the reason against the rest.
//!
//! Facts from the file are checked here: kind, interpreter, libraries, an
//! allocator of its own. Facts of the running process (another allocator among the
//! libraries) are checked by the recorder. `#!` scripts go by their interpreter.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use object::{
    Endianness, Object as _,
    elf::{self, FileHeader64},
    read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _},
};

use super::{
    modules,
    recorder::{Files, Recorder},
};

/// Interpreters of interpreters are followed so far, as the kernel does.
const SCRIPTS_MAX: usize = 5;

/// The dynamic linker of glibc.
const GLIBC: &[u8] = b"ld-linux-x86-64.so.2";

/// Libraries that must come first themselves, or see every access.
const SANITIZERS: [&str; 6] = ["libasan", "libhwasan", "liblsan", "libtsan", "libmsan", "libclang_rt."];

/// Programs that translate the code of programs.
const TRANSLATORS: [&str; 9] = ["valgrind", "qemu-", "rr", "drrun", "pin", "wine", "box64", "box86", "fex"];

/// Libraries and parts of programs that translate or replay the code of their own process.
const TRANSLATING: [&str; 10] = [
    "libdynamorio",
    "libdrpreload",
    "libpinvm",
    "pinbin",
    "vgpreload_",
    "librrpreload",
    "librrpage",
    "ntdll.so",
    "wine",
    "FEX",
];

/// The translator of a running process's code, if found: the program, or an executed file.
pub fn translator<'a>(program: &Path, executed: impl Iterator<Item = &'a str>) -> Option<String> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let own = name(program);
    // Valgrind's tools are programs of their own: memcheck-amd64-linux.
    if is_translator(&own) || own.ends_with("-amd64-linux") {
        return Some(own);
    }
    executed
        .map(|path| name(Path::new(path)))
        .find(|name| TRANSLATING.iter().any(|known| name.starts_with(known)) || is_translator(name))
}

/// The recorder for a program, or why there is none.
pub fn recorder(program: &Path) -> Result<Recorder, String> {
    why_not(program).map_or(Ok(()), Err)?;
    let failed = |error| format!("the recorder of allocations was not made ready: {error}");
    Recorder::new(Files::create().map_err(failed)?).map_err(failed)
}

/// Why a program is not launched with the recorder.
pub fn why_not(program: &Path) -> Option<String> {
    let mut file = program.to_owned();
    for _ in 0..SCRIPTS_MAX {
        match interpreter(&file) {
            Some(interpreter) => file = interpreter,
            None => return why_not_binary(&file),
        }
    }
    Some("the program is a script of a script of a script".to_owned())
}

/// The interpreter that a `#!` line names.
fn interpreter(file: &Path) -> Option<PathBuf> {
    // A pipe in its place would hold us up.
    let mut start = [0u8; 256];
    let n = fs::metadata(file).ok()?.is_file().then(|| File::open(file).ok()?.read(&mut start).ok())??;
    let line = start.get(..n)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii_start().split(|byte| byte.is_ascii_whitespace()).next()?;
    (!word.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(word)))
}

fn why_not_binary(file: &Path) -> Option<String> {
    let real = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if is_translator(&name) {
        return Some(format!("{name} translates the code of other programs"));
    }
    let metadata = match fs::metadata(&real) {
        Ok(metadata) if metadata.is_file() => metadata,
        // The launch itself tells.
        _ => return Some("the program is no file".to_owned()),
    };
    if metadata.permissions().mode() & 0o6000 != 0 || has_capabilities(&real) {
        return Some(format!("{name} runs with rights of its own (set-uid, or file capabilities)"));
    }
    let Ok(opened) = File::open(&real) else { return Some(format!("{name} cannot be read")) };
    // SAFETY: the mapping is private and read-only; a file
    // truncated meanwhile is a limit stated in `modules`.
    let Ok(bytes) = (unsafe { memmap2::Mmap::map(&opened) }) else {
        return Some(format!("{name} cannot be read"));
    };
    of_elf(&bytes, &name)
}

/// By the name of its file.
fn is_translator(name: &str) -> bool {
    TRANSLATORS.iter().any(|translator| {
        name == *translator
            || (translator.len() > 3 && name.starts_with(translator))
            || name.starts_with(&format!("{translator}-"))
    })
}

fn has_capabilities(file: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(file.as_os_str().as_bytes()) else { return true };
    // SAFETY: both strings end with a zero byte; no buffer is given.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn of_elf(bytes: &[u8], name: &str) -> Option<String> {
    let Ok(file) = ElfFile64::<Endianness>::parse(bytes) else {
        return Some(format!("{name} is not a 64-bit program"));
    };
    let (header, endian) = (file.elf_header(), file.endian());
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Some(format!("{name} is not an x86-64 program"));
    }
    let Some(linker) = dynamic_linker(header, endian, bytes) else {
        return Some(format!("{name} is statically linked"));
    };
    if !linker.ends_with(GLIBC) {
        return Some(format!("{name} is not linked with glibc"));
    }
    let needed = needed(header, endian, bytes);
    if let Some(library) =
        needed.iter().find(|library| SANITIZERS.iter().any(|name| library.starts_with(name)))
    {
        return Some(format!("{name} is built with a sanitizer ({library})"));
    }
    let has = |wanted: &str| {
        file.dynamic_symbols().any(|symbol| {
            use object::ObjectSymbol as _;
            symbol.is_definition() && symbol.name() == Ok(wanted)
        })
    };
    if ["__asan_init", "__tsan_init", "__msan_init", "__hwasan_init"].iter().any(|symbol| has(symbol)) {
        return Some(format!("{name} is built with a sanitizer"));
    }
    if modules::is_allocator(&modules::probes_of(bytes)) {
        return Some(format!("{name} brings an allocator of its own; --heap=probes follows it"));
    }
    None
}

fn dynamic_linker<'a>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    bytes: &'a [u8],
) -> Option<&'a [u8]> {
    let segments = header.program_headers(endian, bytes).ok()?;
    let path = segments.iter().find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
    path.map(|path| path.split(|byte| *byte == 0).next().unwrap_or(path))
}

/// Names of its libraries.
fn needed(header: &FileHeader64<Endianness>, endian: Endianness, bytes: &[u8]) -> Vec<String> {
    let Ok(sections) = header.sections(endian, bytes) else { return Vec::new() };
    let Ok(Some((entries, strings))) = sections.dynamic(endian, bytes) else { return Vec::new() };
    let Ok(strings) = sections.strings(endian, bytes, strings) else { return Vec::new() };
    entries
        .iter()
        .filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED)
        .filter_map(|entry| entry.string(endian, strings).ok())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Path, text: &[u8]) {
        fs::write(file, text).unwrap();
    }

    #[test]
    fn ordinary_programs_may_and_scripts_go_by_their_interpreter() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(why_not(&own), None);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        write(&script, format!("#! {} -x\nwhatever", own.display()).as_bytes());
        assert_eq!(why_not(&script), None);
        let of_script = folder.path().join("of_script");
        write(&of_script, format!("#!{}\n", script.display()).as_bytes());
        assert_eq!(why_not(&of_script), None);
        write(&script, format!("#!{}\n", of_script.display()).as_bytes());
        assert!(why_not(&script).unwrap().contains("script of a script"));
    }

    #[test]
    fn a_running_translator_is_known_by_its_program_or_by_what_it_executes() {
        let of = |program: &str, executed: &[&str]| translator(Path::new(program), executed.iter().copied());
        assert_eq!(of("/usr/bin/qemu-x86_64", &[]).as_deref(), Some("qemu-x86_64"));
        let memcheck = "/usr/libexec/valgrind/memcheck-amd64-linux";
        assert_eq!(of(memcheck, &[]).as_deref(), Some("memcheck-amd64-linux"));
        assert_eq!(of("/usr/bin/rr", &[]).as_deref(), Some("rr"));
        let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let dynamorio = "/opt/dr/lib64/release/libdynamorio.so";
        assert_eq!(of("/usr/bin/ls", &[libc, dynamorio]).as_deref(), Some("libdynamorio.so"));
        let preloaded = "/usr/lib/rr/librrpreload.so";
        assert_eq!(of("/usr/bin/ls", &[preloaded, libc]).as_deref(), Some("librrpreload.so"));
        assert_eq!(of("/usr/bin/wine64-preloader", &[]).as_deref(), Some("wine64-preloader"));
        for ordinary in ["/usr/bin/ls", "/usr/bin/rrdtool", "/usr/bin/pinentry", "/usr/bin/python3.13"] {
            assert_eq!(of(ordinary, &["/usr/lib/libpin.so.1", libc, "[vdso]", ""]), None, "{ordinary}");
        }
    }

    #[test]
    fn what_may_not_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, bytes: &[u8]| {
            let file = folder.path().join(name);
            write(&file, bytes);
            why_not(&file).unwrap_or_default()
        };
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(of("qemu-x86_64", &own).contains("translates"), "by its name");
        assert!(of("valgrind", &own).contains("translates"));
        assert_eq!(of("rrdtool", &own), "");
        let mut small = own.clone();
        small[4] = 1;
        assert!(of("small", &small).contains("not a 64-bit"));
        let mut other = own.clone();
        other[18] = 183;
        assert!(of("arm", &other).contains("x86-64"));
        assert!(of("text", b"hello").contains("not a 64-bit"));
        let at = own.windows(GLIBC.len()).position(|window| window == GLIBC).unwrap();
        let mut musl = own;
        musl[at..at + 6].copy_from_slice(b"ld-mus");
        assert!(of("musl", &musl).contains("glibc"));
        let file = folder.path().join("setuid");
        fs::copy(std::env::current_exe().unwrap(), &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(why_not(&file).unwrap().contains("set-uid"));
    }
}
