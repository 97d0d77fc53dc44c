export PYTHONPATH=/work/scratch/living/snap2/src OMP_NUM_THREADS=1 SELEX_WEIGHTS=/work/scratch/weights; cd /work/scratch/living/snap2
exec timeout 470 /work/main/.venv/bin/python benchmarks/growing.py --images 240 --backbone dinov2-vits14 > /work/scratch/living/growing.log 2>&1
