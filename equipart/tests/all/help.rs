//! Texts generated from the arguments: help, completions, the manual.
use crate::child::{equipart, refused};

/// Kills: a script or a page without the commands and flags, a page that is missing, a hidden command in the
/// list.
#[test]
fn completions_and_manual_are_made_of_the_arguments() {
    let said = |args: &[&str]| {
        let output = equipart(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(&["completions", shell]);
        assert!(
            ["collectives", "checkpoint-every"].iter().all(|word| script.contains(word)),
            "{shell}: {script}"
        );
    }
    let page = said(&["man"]);
    assert!(page.contains(".TH equipart 1") && page.contains("equipart\\-collectives(1)"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man").display().to_string();
    assert_eq!(said(&["man", "--out", &out]), "");
    assert_eq!(std::fs::read_to_string(dir.path().join("man/equipart.1")).unwrap(), page);
    assert!(
        std::fs::read_to_string(dir.path().join("man/equipart-train.1"))
            .unwrap()
            .contains("checkpoint\\-every")
    );
    let help = said(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap().lines().count();
    let pages = std::fs::read_dir(&out).unwrap().count();
    // twenty, and one
    assert_eq!((commands, pages), (24, 24), "help, too, is in the list; the program has a page");
    assert_eq!(
        (help.matches("completions").count(), help.matches(" man").count()),
        (2, 2),
        "below the list: {help}"
    );
    refused(&["completions", "dos"], "dos");
}

#[test]
fn help_tells_every_command() {
    let help = String::from_utf8(equipart(&["--help"]).stdout).unwrap();
    for command in ["compare", "train", "generate", "prove", "price", "context", "bench"] {
        assert!(help.contains(command), "{help}");
        assert!(equipart(&[command, "--help"]).status.success());
    }
    assert_eq!(equipart(&["dance"]).status.code(), Some(2));
}
