//! The README's two commands: the one code block that holds `cargo run ..`, then `cargo test ..`, and nothing
//! else.

/// Returns the words of the README's test command, without its comment.
///
/// # Errors
/// A sentence for the terminal, if there is not exactly one such block or its test command needs a shell.
pub(crate) fn test_command(readme: &str) -> Result<Vec<String>, String> {
    let blocks = blocks(readme);
    let mut tests = blocks.iter().filter_map(|lines| match &lines[..] {
        [run, test] if run.starts_with("cargo run") && test.starts_with("cargo test") => Some(*test),
        _ => None,
    });
    let wanted = "one code block with two commands, `cargo run ..` and then `cargo test ..`";
    let test =
        tests.next().ok_or_else(|| format!("README.md lacks {wanted}: the second is the test command"))?;
    if let Some(second) = tests.next() {
        return Err(format!("README.md must have only {wanted}: it has both `{test}` and `{second}`"));
    }
    if test.contains(['"', '\'', '$', '`', '|', '&', ';', '<', '>', '\\']) {
        return Err(format!(
            "README.md's test command runs without a shell, so it must be plain words: `{test}`"
        ));
    }
    Ok(test.split_whitespace().map(str::to_owned).collect())
}

/// Returns the lines of each fenced block, without comments and empty lines.
fn blocks(markdown: &str) -> Vec<Vec<&str>> {
    let mut blocks = Vec::new();
    let mut open: Option<Vec<&str>> = None;
    for line in markdown.lines().map(str::trim) {
        if line.starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => open = Some(Vec::new()),
            }
        } else if let Some(block) = &mut open {
            let command = line.split_once('#').map_or(line, |(command, _)| command).trim();
            block.extend((!command.is_empty()).then_some(command));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::test_command;

    const BLOCK: &str = "```sh\ncargo run --release   # compare\n\ncargo test -q          # prove\n```\n";

    #[test]
    fn the_second_of_the_two_commands_is_found() {
        let other = "Prose.\n```sh\ncargo test -p layers column\n```\n```rust\nlet x = 1;\n```\n";
        assert_eq!(test_command(&format!("{other}{BLOCK}")).unwrap(), ["cargo", "test", "-q"]);
    }

    #[test]
    fn a_missing_second_or_shell_command_is_refused() {
        let lacks = |text: &str| test_command(text).unwrap_err();
        assert!(lacks("cargo run\ncargo test\n").starts_with("README.md lacks one code block"));
        assert!(lacks("```sh\ncargo test\ncargo run\n```\n").starts_with("README.md lacks one code block"));
        assert!(lacks(&BLOCK.repeat(2)).contains("both `cargo test -q` and `cargo test -q`"));
        assert!(
            lacks("```\ncargo run\ncargo test && true\n```\n").contains("plain words: `cargo test && true`")
        );
    }
}
