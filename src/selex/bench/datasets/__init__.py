"""The paper's benchmark datasets: their layouts on disk, their facts, their splits."""
