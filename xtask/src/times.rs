//! CPU times of building and proving, printed so that their growth is seen.
use crate::task::{TaskResult, cargo, code, root};
use std::fs;
use std::process::ExitStatus;

/// File of a layer and a line of its code: the time of an edited layer is measured after an edit of this
/// line.
const EDITED: [&str; 2] = ["layers/src/linear/column.rs", "        let mut y = matmul("];
/// The layer's proof. `tensor` is among the crates because its tests enable features of others, as the whole
/// workspace does: so nothing is built twice.
const PROOF: &str = "test --quiet --package tensor --package layers --features layers/proof --lib column::";

/// Returns the CPU seconds, user and system, of all ended programs that this one started; `None` if the
/// system does not report them. (`/proc/self/stat` counts in hundredths.)
pub(crate) fn children() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(") ")?; // the program's name, which may hold anything, ends there
    let ticks: Vec<f64> = fields.split(' ').skip(13).take(2).filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / 100.0)
}

/// `cargo xtask edit`: runs the layer's proof as it is, then with one line edited, and prints what the second
/// time took.
pub(crate) fn edited_layer() -> TaskResult {
    edit().map(code).map_err(|why| format!("edit cannot go on: {why}."))
}

fn edit() -> std::io::Result<ExitStatus> {
    let [path, line] = EDITED;
    let path = root().join(path);
    let was = fs::read_to_string(&path)?;
    let edited = was.replacen(line, &format!("        std::hint::black_box(());\n{line}"), 1);
    if edited == was {
        return Err(std::io::Error::other(format!("{} has no line {line:?}", path.display())));
    }
    let proof = || cargo().args(PROOF.split(' ')).status();
    let status = proof()?;
    if !status.success() {
        return Ok(status);
    }
    fs::write(&path, edited)?;
    let before = children();
    let status = proof();
    fs::write(&path, was)?;
    if let (Some(before), Some(after)) = (before, children()) {
        println!("one edited layer, to the verdict of its proof: {:.1} s of CPU", after - before);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Kills: the time of this program itself, a time of one kind (user or system) only, a time in other
    /// units.
    #[test]
    fn what_children_took_is_counted() {
        let Some(before) = children() else { return };
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().expect("a shell").success());
        let took = children().expect("the system said it before") - before;
        assert!(took > 0.0 && took < 60.0, "{took} s");
    }
}
