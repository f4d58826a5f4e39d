//! What the meter says is so: shares are shares, activations grow with the tokens and not with their pairs, and the
//! system sees the same.
use equipart::config::Architecture;
use equipart::price::{Price, price, program};
use equipart::settings::{OptimizerName, Settings};
use equipart::{Config, Layout};
use kernels::Heads;
use layers::Shape;
use tensor::{Category, Cpu, Device};

fn config(width: usize, blocks: usize, vocabulary: usize) -> Config {
    let heads = Heads { queries: 8, keys: 8, dim: width / 8 };
    let shape = Shape { width, blocks, heads, hidden: 3 * width, vocabulary, ..Shape::LLAMA };
    Config { architecture: Architecture::Llama, shape, positions: 1024, bos: None, eos: Vec::new() }
}

fn settings(seq: usize, batch_size: usize) -> Settings {
    Settings {
        steps: 2,
        seq,
        batch_size,
        microbatches: 1,
        lr: 0.01,
        warmup: 0,
        optimizer: OptimizerName::Adamw,
        clip: Some(1.0),
        seed: 3,
        text: 0,
        constant: true,
        dropout: None,
        label_smoothing: 0.0,
        z_loss: 0.0,
    }
}

fn prices(config: &Config, settings: &Settings, layout: &str) -> Vec<Price> {
    price(config, settings, &layout.parse().unwrap()).unwrap()
}

/// Weights, gradients and moments of each rank are 1/tp of the unsplit ones, as measured and as priced. (Gains of norms
/// are whole on every rank; of this model they are too few to matter.) Kills: a parameter that is not cut, a gradient or
/// a moment of its whole shape, a gathered weight that stays.
#[test]
fn what_is_split_takes_its_share() {
    let (config, settings) = (config(64, 2, 512), settings(16, 2));
    let split = [Category::Weights, Category::Gradients, Category::Optimizer];
    let unsplit = &prices(&config, &settings, "none")[0].peak_bytes;
    for (text, tp) in [("none", 1), ("tp=2", 2), ("tp=4", 4), ("tp=4,sp", 4)] {
        let (layout, priced): (Layout, _) = (text.parse().unwrap(), prices(&config, &settings, text));
        let run = layout.world().unwrap().run(|device: Cpu<f32>, mesh| {
            program((&device, &mesh), &layout, &config.shape, &settings).map(|(peaks, ..)| peaks)
        });
        for (rank, (peaks, priced)) in run.unwrap().into_iter().zip(priced).enumerate() {
            for category in split {
                let (bytes, whole) = (peaks.category[category as usize], unsplit[category.name()]);
                let off = (bytes * tp).abs_diff(whole) as f64 / whole as f64;
                assert!(off < 0.02, "{text}, rank {rank}: {bytes} bytes of {} of {whole}", category.name());
                assert_eq!(bytes, priced.peak_bytes[category.name()], "{text}, rank {rank}");
            }
        }
    }
}

/// From T tokens to 2T and to 4T: what pairs take shows in the second difference, `A(4T) − 3A(2T) + 2A(T)`, which is
/// nothing for activations. Buffers peak at several moments, each linear, so theirs is only less than one bit a pair would
/// make. Kills: a matrix of T×T scores or masks, whole or of one head, kept or not; scratch for all pairs.
#[test]
fn activations_grow_with_the_tokens() {
    const T: usize = 256;
    let config = config(64, 2, 512);
    for layout in ["none", "tp=2", "tp=2,sp"] {
        let peaks = |seq| prices(&config, &settings(seq, 1), layout).swap_remove(0).peak_bytes;
        let [one, two, four] = [T, 2 * T, 4 * T].map(peaks);
        for (category, most) in [("activations", 0), ("buffers", 6 * T * T / 8)] {
            let (one, two, four) = (one[category], two[category], four[category]);
            assert!(one < two, "{layout}: {category} of {one} bytes do not grow");
            let bent = (four + 2 * one).abs_diff(3 * two);
            assert!(bent <= most, "{layout}: {category} of {one}, {two}, {four} bytes, bent by {bent}");
        }
    }
}

/// The variable that makes this program take the step whose memory is looked at, under that layout.
const CHILD: &str = "EQUIPART_MEMORY_OF";

/// A step of AdamW on 22 million parameters: prints the bytes that the meters of all ranks say were held at most, the
/// bytes that their pools took, and those that the system says were resident at most.
fn child(layout: &Layout) {
    let (config, settings) = (config(512, 4, 8192), settings(64, 1));
    let run = layout.world().unwrap().run(|device: Cpu<f32>, mesh| {
        let (peaks, ..) = program((&device, &mesh), layout, &config.shape, &settings)?;
        Ok::<_, equipart::Error>([peaks.total, device.meter().reserved()])
    });
    let [held, reserved] = run.unwrap().into_iter().fold([0; 2], |[a, b], [x, y]| [a + x, b + y]);
    println!("\nmemory: {held} {reserved} {}", resident().expect("the system says it"));
}

/// The most bytes that this process had in memory; none where the system does not say.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}

/// In a process of its own, whose size is that of the step. Kills: memory that nobody meters or that is metered twice,
/// pools that keep much more than is ever held at once, copies made while loading.
#[test]
fn the_meter_is_what_the_system_sees() {
    if let Ok(layout) = std::env::var(CHILD) {
        return child(&layout.parse().unwrap());
    }
    if resident().is_none() {
        println!("not tried: this system does not say how much memory a process has");
        return;
    }
    for layout in ["none", "tp=2"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "memory::the_meter_is_what_the_system_sees", "--nocapture"])
            .env(CHILD, layout);
        let out = String::from_utf8(child.output().unwrap().stdout).unwrap();
        let line = out.lines().find_map(|line| line.strip_prefix("memory: ")).expect(&out);
        let bytes: Vec<usize> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let [held, reserved, resident] = bytes[..] else { panic!("{line}") };
        println!("{layout}: {held} held, {reserved} reserved, {resident} resident");
        assert!(held > 300 << 20 && reserved >= held, "{line}");
        for metered in [held, reserved] {
            let off = metered.abs_diff(resident);
            assert!(off < metered / 10 + (40 << 20), "{layout}: {metered} metered, {resident} resident");
        }
    }
}
