//! Files are opened with one clear sentence, and replaced whole.
use super::*;
use std::cell::RefCell;

thread_local! { static STEPS: RefCell<Vec<&'static str>> = RefCell::default(); }
pub(super) fn note(step: &'static str) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}
fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// Kills: a name given before the bytes are on the disk, a name that is not on the disk itself.
#[test]
fn bytes_reach_the_disk_before_the_name_does() {
    let folder = tempfile::tempdir().unwrap();
    replace_file(&folder.path().join("a"), b"new").unwrap();
    let steps = STEPS.take();
    assert_eq!(steps, if cfg!(unix) { &["sync file", "rename", "sync folder"][..] } else { &steps[..2] });
    assert_eq!(steps[..2], ["sync file", "rename"]);
    assert_eq!(super::folder(Path::new("a")), Path::new("."));
}

/// Kills: a step that is noted and not taken. A pipe has no disk to reach.
#[test]
#[cfg(unix)]
fn bringing_to_the_disk_is_left_to_the_system() {
    let (_reader, writer) = io::pipe().unwrap();
    assert!(sync(&fs::File::from(std::os::fd::OwnedFd::from(writer))).is_err());
}

/// Kills: writing into the target itself, a temporary file left behind.
#[test]
fn an_unfinished_replacement_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    replace_file(&path, b"old").unwrap();
    let mut new = Replacement::beside(&path).unwrap();
    new.write_all(b"half of the n").unwrap();
    assert_eq!((read(&path).unwrap(), names(folder.path()).len()), (b"old".to_vec(), 2));
    drop(new);
    assert_eq!((read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["a.json".to_owned()]));
}

/// Kills: a reader that sees half a file.
#[test]
fn readers_see_the_old_file_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    replace_file(&path, &vec![0; 100_000]).unwrap();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| (1..20).for_each(|i| replace_file(&path, &vec![i; 100_000]).unwrap()));
        while !writer.is_finished() {
            let seen = read(&path).unwrap();
            assert!(seen.len() == 100_000 && seen.iter().all(|b| *b == seen[0]));
        }
    });
    assert_eq!((read(&path).unwrap()[0], names(folder.path()).len()), (19, 1));
}

#[test]
#[cfg(unix)]
fn a_replacement_keeps_permissions_and_a_new_file_has_the_usual_ones() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
    fs::write(folder.path().join("usual"), b"x").unwrap();
    replace_file(&folder.path().join("new"), b"x").unwrap();
    assert_eq!(mode("new"), mode("usual"));
    fs::set_permissions(folder.path().join("new"), PermissionsExt::from_mode(0o640)).unwrap();
    replace_file(&folder.path().join("new"), b"y").unwrap();
    assert_eq!(mode("new") & 0o777, 0o640);
}

#[test]
#[cfg(unix)]
fn a_link_is_replaced_and_what_it_points_to_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (blob, link) = (folder.path().join("blob"), folder.path().join("link"));
    fs::write(&blob, b"old").unwrap();
    std::os::unix::fs::symlink(&blob, &link).unwrap();
    replace_file(&link, b"new").unwrap();
    assert_eq!((read(&blob).unwrap(), read(&link).unwrap()), (b"old".to_vec(), b"new".to_vec()));
}

#[test]
fn what_is_no_readable_file_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let why =
        |name: &str| read(&at(name)).unwrap_err().to_string().replace(folder.path().to_str().unwrap(), "");
    assert_eq!(why("none"), "/none: there is no such file");
    fs::create_dir(at("dir")).unwrap();
    assert_eq!(why("dir"), "/dir is a directory where a file should be");
    fs::write(at("empty"), b"").unwrap();
    assert_eq!(why("empty"), "/empty is empty (0 bytes)");
    assert!(why("empty/child").starts_with("cannot read /empty/child: "), "{}", why("empty/child"));
}

/// Kills: opening a pipe, which waits until someone writes to it.
#[test]
#[cfg(unix)]
fn pipes_and_secrets_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let why = read(Path::new("/dev/null")).unwrap_err().to_string();
    assert_eq!(why, "/dev/null is a pipe, socket or device where a regular file should be");
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, b"x").unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o000)).unwrap();
    if fs::File::open(&secret).is_err() {
        let why = read(&secret).unwrap_err().to_string(); // the system's administrator may read all
        assert!(why.starts_with("cannot read ") && why.contains("denied"), "{why}");
    }
}

#[test]
fn what_cannot_be_replaced_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let why = |path: &Path| replace_file(path, b"x").unwrap_err().to_string();
    assert!(why(folder.path()).ends_with(" is a directory where a file should be"));
    assert_eq!(why(Path::new("..")), ".. is a directory where a file should be");
    let none = folder.path().join("none/a");
    let reported = why(&none);
    assert!(reported.starts_with(&format!("cannot write beside {}: ", none.display())), "{reported}");
    // whose name nobody gave
    assert!(reported.ends_with("(os error 2)") && !reported.contains(".a."), "{reported}");
    assert_eq!(names(folder.path()), Vec::<String>::new());
}
