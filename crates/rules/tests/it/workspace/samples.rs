//! The checks of the parent module on samples: positive and negative cases.

use super::*;

/// The same body under every function signature.
#[test]
fn long_function_check_covers_every_signature() {
    let heads = [
        "fn f() {",
        "pub fn f() {",
        "pub(super) fn f() {",
        "pub(crate) fn f() {",
        "pub(in crate::nvme) fn f() {",
        "pub(crate) const fn f() -> u8 {",
        "pub async fn f() {",
        "pub(super) async unsafe fn f() {",
        "pub unsafe extern \"C\" fn f(_: *mut u8) {",
        "default fn f() {",
        "pub(super) fn f(\n    &self,\n    ask: Identify,\n) -> Result<Box<[u8; BYTES]>, Status> {",
        "fn f<T, const N: usize>(of: [T; N]) -> impl Fn(T) -> [T; { N + 1 }]\nwhere\n    T: Copy,\n{",
        "fn f<F: Fn(u8) -> u8>(call: F) -> Sum<{ 1 << 3 }> {",
        "fn f(bits: [u8; WORDS << 1]) -> Vec<Vec<u8>> {",
        "fn f(call: fn(u8) -> u8) {",
        "#[inline] fn f() { // {",
        "fn $f() {",
        "fn\nf() {",
        "fn r#match() {",
    ];
    for head in heads {
        for indent in ["", "    "] {
            let lines = |count: usize| {
                let inside = format!("{indent}    let brace = '{{';\n").repeat(count);
                let text = format!("{head}\n{inside}}}\n");
                text.lines().map(|line| format!("{indent}{line}\n")).collect::<String>()
            };
            let head_lines = head.matches('\n').count() + 1;
            let fits = FUNCTION_LINES_MAX - 1 - head_lines;
            assert_eq!(long_functions("a.rs", &lines(fits)), [""; 0], "{head}");
            assert_eq!(long_functions("a.rs", &lines(fits + 1)).len(), 1, "{head}");
        }
    }
}

#[test]
fn function_after_bodyless_one_is_found() {
    let long = "let a = 1;\n".repeat(FUNCTION_LINES_MAX);
    let before = [
        "trait T {\n    fn g(\n        a: A,\n    ) -> B;\n}",
        "type G = fn(\n    u8,\n) -> u8;",
        "fn g() -> u8 { 1 }",
        "fn g() -> &'static str { \"}{\" }",
        "fn g() -> &'static str { r#\"\"}{\"# }",
        "// fn g() {",
        "/* fn g() { /* { */ */",
        "const G: &[u8] = b\"{\\\"{\";",
        "const G: [char; 3] = ['\"', '{', '\\''];",
        "fn g<'a>(a: &'a str) -> &'a str { a }",
    ];
    for before in before {
        let text = format!("{before}\nfn f() {{\n{long}}}\n");
        assert_eq!(long_functions("a.rs", &text).len(), 1, "{before}");
    }
    // A nested function is measured separately.
    let text = format!("fn outer() {{\n    fn inner() {{\n{long}    }}\n}}\n");
    assert_eq!(long_functions("a.rs", &text).len(), 2);
    let text = format!("impl S {{\n    pub(super) fn f(&self) {{\n{long}    }}\n}}\n");
    assert_eq!(long_functions("a.rs", &text), ["a.rs:2: f has 72 lines"]);
}

#[test]
fn unsafe_check_covers_every_syntax() {
    for code in [
        "unsafe { a() }",
        "unsafe\n{ a() }",
        "pub unsafe fn a() {}",
        "unsafe extern \"C\" fn a() {}",
        "unsafe extern \"C\" { fn a(); }",
        "unsafe impl Send for A {}",
        "unsafe trait A {}",
        "#[unsafe(no_mangle)]",
        "#![allow(unsafe_code)]",
        "#[expect(unsafe_code, reason = \"so\")]",
    ] {
        assert_eq!(unsafe_lines(&format!("// a line\n{code}\n")), [2], "{code}");
    }
    for code in [
        "// unsafe { a() }",
        "let a = \"unsafe { a() }\";",
        "type A = unsafe extern \"C\" fn(*mut u8);",
        "type A = unsafe fn(u8);",
        "#![forbid(unsafe_code)]",
    ] {
        assert_eq!(unsafe_lines(code), [0; 0], "{code}");
    }
}

#[test]
fn clock_check_covers_every_alias() {
    for code in [
        "let a = Instant::now();",
        "let a = std::time::Instant::now();",
        "let a = Instant :: now();",
        "let a = Instant::now;",
        "use std::time::Instant as Clock;",
        "use std::time::{Duration, Instant};",
        "use std::{time::{Duration, SystemTime}};",
        "std::thread::sleep(a);",
        "use std::thread::sleep;",
        "use std::thread::{sleep, spawn};",
        "use std::thread::{spawn, sleep as rest};",
        "use std::thread as t;",
        "use std::thread::*;",
        "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\nfn b() { Instant::now(); }",
        "#[cfg(test)]\nmod tests;\nfn b() { Instant::now(); }",
        "#[cfg(test)]\nuse a::{b, c};\nfn b() { Instant::now(); }",
        "#[cfg(not(test))]\nfn b() { Instant::now(); }",
    ] {
        assert_eq!(misplaced_uses("crates/bus/src/a.rs", code).len(), 1, "{code}");
    }
    for code in ["use std::time::*;", "use std::time as t;", "use std::{time::*};"] {
        // Either clock.
        assert_eq!(misplaced_uses("crates/bus/src/a.rs", code).len(), 2, "{code}");
    }
    assert_eq!(misplaced_uses("crates/runtime/src/wall.rs", "Instant::now()"), [""; 0]);
    for code in [
        "use std::time::Duration;",
        "use crate::sleep;",
        "rt.sleep(a).await;",
        "use std::thread;",
        "// Instant::now",
        "let a = \"Instant::now\";",
        "#[cfg(test)]\nmod tests {\n    fn a() { Instant::now(); }\n}",
        "#[cfg(test)]\n#[path = \"a.rs\"]\npub(crate) mod tests {\n    use std::time::Instant;\n}",
        "#[cfg(test)]\nuse std::time::Instant;",
    ] {
        assert_eq!(misplaced_uses("crates/bus/src/a.rs", code), [""; 0], "{code}");
    }
}

#[test]
fn poll_check_covers_every_context_name() {
    for code in [
        "a.poll(cx)",
        "a.as_mut().poll(context)",
        "a\n    .poll(&mut *cx)",
        "a.poll(&mut Context::from_waker(waker))",
        "Future::poll(a, cx)",
        "a.poll_unpin(cx)",
        "#[cfg(test)]\nmod tests {}\nfn b() { a.poll(cx) }",
    ] {
        assert_eq!(polls_with_own_context(code).len(), 1, "{code}");
    }
    for code in [
        "a.poll(&mut beside_others(cx))",
        "a.poll(one.as_mut(), rt, &mut beside_others(cx))",
        "a.poll(ticket)",
        "fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) {}",
        "rustix::event::poll(a, b)",
        "#[cfg(test)]\nmod tests { fn b() { a.poll(cx) } }",
    ] {
        assert_eq!(polls_with_own_context(code), [0; 0], "{code}");
    }
}

#[test]
fn print_and_hash_check_covers_library_crates() {
    for code in [
        "use std::collections::{BTreeMap, HashMap as Map};",
        "let a = std::collections::HashSet::new();",
        "println! (\"a\");",
        "print!(\"a\");",
        "eprintln!(\"a\");",
        "let a = dbg!(a);",
        "std::io::stdout().write_all(a);",
        "let a = 1; /* a */ eprint!(\"a\");",
        "#[cfg(test)]\nmod tests;\nfn b() { dbg!(); }",
    ] {
        assert_eq!(library_complaints("crates/host/src/a.rs", code).len(), 1, "{code}");
        assert_eq!(library_complaints("crates/world/src/a.rs", code), [""; 0], "{code}");
    }
    for code in ["// dbg!(a)", "let a = \"println!()\"; // HashMap", "let print = a;"] {
        assert_eq!(library_complaints("crates/host/src/a.rs", code), [""; 0], "{code}");
    }
}

#[test]
fn todo_markers_are_found() {
    for code in ["// TO\u{44}O: a", "//FIX\u{4d}E", "tod\u{6f}!()", "unimple\u{6d}ented! {}"] {
        assert_eq!(todo_markers("a.rs", code).len(), 1, "{code}");
    }
    assert_eq!(todo_markers("a.rs", "// a method of TO\u{44}OS"), [""; 0]);
}

#[test]
fn long_lines_and_files_are_found() {
    assert_eq!(too_long("a.rs", &"a\n".repeat(LINES_MAX + 1)).len(), 1);
    assert_eq!(too_long("a.rs", &"a\n".repeat(LINES_MAX)), [""; 0]);
    assert_eq!(too_long("a.rs", &"é".repeat(COLUMNS_MAX + 1)).len(), 1);
    assert_eq!(too_long("a.rs", &"é".repeat(COLUMNS_MAX)), [""; 0]);
}

#[test]
fn dependency_edges_by_package_and_target_are_found() {
    let all = &["dependencies", "build-dependencies"];
    for manifest in [
        "[dependencies]\nhost.workspace = true",
        "[dependencies]\ndriver = { package = \"doorbell-host\", path = \"../host\" }",
        "[build-dependencies]\nhost = \"1\"",
        "[target.'cfg(unix)'.dependencies]\nhost = \"1\"",
        "[dependencies.host]\nworkspace = true",
        "[dependencies]\nhost = { workspace = true, optional = true }",
    ] {
        assert_eq!(edges(manifest, all), BTreeSet::from(["host".to_owned()]), "{manifest}");
    }
    let manifest =
        "[dependencies]\ndoorbell = \"1\"\nserde = \"1\"\n[dev-dependencies]\nbus = \"1\"";
    assert_eq!(edges(manifest, all), BTreeSet::from(["doorbell".to_owned()]));
    assert_eq!(edges(manifest, &["dev-dependencies"]), BTreeSet::from(["bus".to_owned()]));
}
