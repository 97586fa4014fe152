//! mdbook builds the book in `docs` where it is installed; man pages and completions of every command. No
//! network.

use std::fs;
use std::process::Command;

use testing::root;

/// With mdbook installed (`cargo install mdbook`), it builds the book and warns of nothing.
#[test]
fn mdbook_builds_without_warnings() {
    let mdbook = std::env::var_os("MDBOOK").unwrap_or("mdbook".into());
    let folder = root().join("target/book-checked");
    let mut command = Command::new(mdbook);
    command.arg("build").arg("--dest-dir").arg(&folder).arg(root());
    let Ok(output) = command.output() else {
        println!("left out: mdbook is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("WARN") && !text.contains("ERROR"), "{text}");
    assert!(folder.join("first-hour.html").exists(), "{text}");
}

/// Every command, with the words that lead to it.
fn commands() -> Vec<String> {
    fn walk(command: &clap::Command, name: &str, found: &mut Vec<String>) {
        found.push(name.to_owned());
        for sub in command.get_subcommands() {
            walk(sub, &format!("{name}-{}", sub.get_name()), found);
        }
    }
    let mut found = Vec::new();
    walk(&doorbell::command_line(), "doorbell", &mut found);
    found
}

fn output_of(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_doorbell")).args(arguments).output();
    let done = done.expect("the program");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn every_command_has_a_man_page_and_help() {
    let folder = root().join("target/man-checked");
    let _ = fs::remove_dir_all(&folder);
    assert_eq!(output_of(&["man", &folder.display().to_string()]), "");
    let mut written: Vec<_> = fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect();
    written.sort_unstable();
    let mut expected: Vec<_> = commands().iter().map(|name| format!("{name}.1")).collect();
    expected.sort_unstable();
    assert!(expected.len() > 20, "{expected:?}");
    assert_eq!(written, expected);
    for name in written {
        let page = fs::read_to_string(folder.join(&name)).expect("a page");
        for section in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(page.contains(section), "{name}: no {section}");
        }
    }
}

/// Each script names every command; shells that are installed parse their own.
#[test]
fn completion_scripts_parse_and_name_every_command() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = output_of(&["completions", shell]);
        let path = root().join("target").join(format!("completions.{shell}"));
        fs::write(&path, &script).expect("a script");
        for name in commands() {
            let word = name.rsplit_once("doorbell-").map_or("doorbell", |(_, last)| last);
            let last = word.rsplit('-').next().expect("a word");
            assert!(script.contains(last), "{shell}: no {word}");
        }
        match Command::new(shell).arg(check).arg(&path).output() {
            Ok(done) => {
                let text = String::from_utf8_lossy(&done.stderr);
                assert!(done.status.success() && text.is_empty(), "{shell}: {text}");
            }
            Err(_) => println!("left out: {shell} is not installed"),
        }
    }
}
