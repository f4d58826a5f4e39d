//! Runs that are saved and go on: under every schedule of a pipeline, and to another end than they were begun
//! with.
use super::{SHAPE, corpus, files, model, settings, train_as};
use layers::Shape;
use models::{Config, Model};
use ops::ADAMW;
use parallel::Layout;
use run::train::settings::Settings;
use tensor::safetensors::File;

/// Trains the same model under a schedule and unsplit; where ranks have several chunks, with a stop between.
/// Where sums are added up in another order, as for a tied table and for slices of sequences, the files have
/// the same tensors in the same order; else the same bytes.
fn saves_what_the_unsplit_run_saves(tied: bool, schedules: &[&str]) {
    let shape = Shape { blocks: 4, tied, ..SHAPE };
    let fresh = Model::fresh(Config { shape, ..model(tied).config }, 5);
    let usual = settings(&corpus(), ADAMW);
    let settings = Settings { steps: 2, batch_size: 4, microbatches: 4, clip: None, warmup: 1, ..usual };
    let once = tempfile::tempdir().unwrap();
    train_as(&fresh, once.path(), settings.clone(), "none", None);
    for schedule in schedules {
        let (split, twice) = (format!("pp=2:{schedule}"), tempfile::tempdir().unwrap());
        let chunks = split.parse::<Layout>().unwrap().chunks();
        for stop_after in if chunks > 2 && !tied { &[Some(1), None][..] } else { &[None] } {
            train_as(&fresh, twice.path(), settings.clone(), &split, *stop_after);
        }
        let [wanted, seen] = [once.path(), twice.path()].map(files);
        assert!(seen.keys().eq(wanted.keys()), "{split}: {:?}", seen.keys());
        for (name, wanted) in wanted {
            let is_near = (tied || *schedule == "seq1f1b") && name.ends_with(".safetensors");
            assert_eq!(seen[&name].len(), wanted.len(), "{name} under {split}, tied: {tied}");
            let about = |folder: &tempfile::TempDir| {
                let file = File::open(&folder.path().join(&name)).unwrap();
                let tensors = file.in_order().into_iter().map(|name| {
                    let info = file.info(name).unwrap();
                    (name.to_string(), info.dtype, info.shape.clone())
                });
                (tensors.collect::<Vec<_>>(), file.metadata().clone())
            };
            let same = if is_near { about(&once) == about(&twice) } else { seen[&name] == wanted };
            assert!(same, "{name} under {split}, tied: {tied}");
        }
    }
}

/// Kills: parameters written stage by stage where a stage has chunks from both ends of the model; moments
/// under another parameter's name; a schedule without checkpoints.
#[test]
fn every_schedule_saves_the_folder_of_the_unsplit_run() {
    let all = parallel::pipeline::ALL.iter().filter(|schedule| !schedule.updates_each());
    let all: Vec<_> = all.map(|schedule| schedule.about().word).collect();
    assert!(all.len() >= 10);
    saves_what_the_unsplit_run_saves(false, &all);
    saves_what_the_unsplit_run_saves(true, &["interleaved", "zb-v"]);
}

/// A run on stale weights drains its pipeline before each checkpoint. Kills: microbatches that are lost or
/// run twice around a checkpoint, updates counted as steps or from zero, a loss reported with another step.
#[test]
fn a_run_on_stale_weights_goes_on_as_if_it_had_not_stopped() {
    let usual = settings(&corpus(), ADAMW);
    let settings = Settings { steps: 4, batch_size: 8, microbatches: 4, clip: None, warmup: 1, ..usual };
    for layout in ["pp=2:pipedream", "pp=2:pipedream-vertical", "pp=2:pipedream,dp=2:zero1"] {
        let (once, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let losses = train_as(&model(false), once.path(), settings.clone(), layout, None);
        let mut parts = train_as(&model(false), twice.path(), settings.clone(), layout, Some(2));
        parts.extend(train_as(&model(false), twice.path(), settings.clone(), layout, None));
        assert_eq!((losses.len(), &parts), (4, &losses), "{layout}");
        assert!(files(once.path()) == files(twice.path()), "{layout}: the folders differ");
    }
}

/// In the warm-up a rate does not depend on where the run ends. Kills: a resumed run that ends where it was
/// to end at first, a rate that falls to the old end.
#[test]
fn a_run_goes_on_to_another_end() {
    let (once, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let short = settings(&corpus(), ADAMW);
    let long = Settings { steps: 8, ..short.clone() };
    let losses = train_as(&model(false), once.path(), long.clone(), "none", None);
    let mut parts = train_as(&model(false), twice.path(), short, "none", Some(2));
    parts.extend(train_as(&model(false), twice.path(), long, "none", None));
    assert_eq!(parts, losses);
    assert!(files(once.path()) == files(twice.path()), "the folders differ");
}
