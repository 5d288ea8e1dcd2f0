PRAGMA application_id = 1920234862;
BEGIN TRANSACTION;
CREATE TABLE compiles (
	id INTEGER NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	cubin_sha256 VARCHAR(64) NOT NULL, 
	target INTEGER NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_compiles PRIMARY KEY (id), 
	CONSTRAINT uq_compiles_key UNIQUE ("key")
);
INSERT INTO "compiles" VALUES(1,'fefa341bd09fe807914c385d7c14f8d2fcee2aa895681503f2e1601bc8f3d05c','abababababababababababababababababababababababababababababababab',90,'{"buffers":3,"compile_s":1.5,"cubin_sha256":"abababababababababababababababababababababababababababababababab","loop_instructions":96,"loop_local_ops":0,"mma_count":4,"mma_k":16,"mma_kind":"hgmma","registers":128,"shared_bytes":98304,"spill_bytes":0,"stage_bytes":24576,"target":90,"threads":128,"tmem_columns":0,"weight_stage_bytes":16384}');
CREATE TABLE problems (
	id INTEGER NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	tokens INTEGER NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_problems PRIMARY KEY (id), 
	CONSTRAINT uq_problems_key UNIQUE ("key")
);
INSERT INTO "problems" VALUES(1,'ef8b4545b3ef42373a1ce7827228d559',4,'{"capacity":4,"layout":{"kind":"single","ranks":1},"routing":{"counts":[],"kind":"uniform","skew":0.0},"shape":{"activation":{"alpha":1.0,"kind":"swiglu","limit":null,"up_shift":0.0},"activations":"bf16","also":[],"biases":false,"experts":8,"hidden":256,"intermediate":128,"layers":1,"model":"little","padded_intermediate":0,"routed_scaling_factor":1.0,"shared_experts":0,"shared_intermediate":0,"top_k":2,"weight_on_input":false,"weights":"bf16"},"tokens":4}');
CREATE TABLE rubin_tune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT rubin_tune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "rubin_tune_version" VALUES('0001');
CREATE TABLE silicons (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	arch INTEGER NOT NULL, 
	sms INTEGER NOT NULL, 
	memory_bytes BIGINT NOT NULL, 
	shared_limit_bytes BIGINT NOT NULL, 
	power_limit_w INTEGER NOT NULL, 
	CONSTRAINT pk_silicons PRIMARY KEY (id), 
	CONSTRAINT uq_silicons_key UNIQUE ("key")
);
INSERT INTO "silicons" VALUES(1,'sm_90 132 SMs 140 GiB 232448 B 700 W',90,132,150754820096,232448,700);
CREATE TABLE sweeps (
	id INTEGER NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	request TEXT NOT NULL, 
	counts TEXT NOT NULL, 
	started_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_sweeps PRIMARY KEY (id), 
	CONSTRAINT ck_sweeps_ck_sweeps_state CHECK (state IN ('running', 'stopped', 'finished')), 
	CONSTRAINT uq_sweeps_key UNIQUE ("key")
);
INSERT INTO "sweeps" VALUES(1,'s1','print','finished','{"kernel":"megamoe"}','{"evaluated":1}','2026-12-01 05:01:59','2026-12-01 05:01:59');
CREATE TABLE toolchains (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_toolchains PRIMARY KEY (id), 
	CONSTRAINT uq_toolchains_key UNIQUE ("key")
);
INSERT INTO "toolchains" VALUES(1,'triton 3.9.0, ptxas 13.4, torch 2.13.0, 580.1, fma','{"driver":"580.1","fp_fusion":true,"ptxas":"13.4","torch":"2.13.0","triton":"3.9.0"}');
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	sweep_id INTEGER NOT NULL, 
	kernel VARCHAR(100) NOT NULL, 
	source_hash VARCHAR(64) NOT NULL, 
	problem_id INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	unit VARCHAR(16) NOT NULL, 
	config TEXT NOT NULL, 
	silicon_id INTEGER NOT NULL, 
	silicon_name TEXT NOT NULL, 
	toolchain_id INTEGER NOT NULL, 
	policy VARCHAR(100) NOT NULL, 
	evidence SMALLINT NOT NULL, 
	time_us DOUBLE, 
	low_us DOUBLE, 
	high_us DOUBLE, 
	compile_id INTEGER, 
	prediction TEXT, 
	measurement TEXT, 
	why VARCHAR(32), 
	detail TEXT, 
	error DOUBLE, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT ck_trials_ck_trials_outcome CHECK ((time_us IS NULL) <> (why IS NULL)), 
	CONSTRAINT fk_trials_compile_id FOREIGN KEY(compile_id) REFERENCES compiles (id), 
	CONSTRAINT fk_trials_problem_id FOREIGN KEY(problem_id) REFERENCES problems (id), 
	CONSTRAINT fk_trials_silicon_id FOREIGN KEY(silicon_id) REFERENCES silicons (id), 
	CONSTRAINT fk_trials_sweep_id FOREIGN KEY(sweep_id) REFERENCES sweeps (id), 
	CONSTRAINT fk_trials_toolchain_id FOREIGN KEY(toolchain_id) REFERENCES toolchains (id), 
	CONSTRAINT uq_trials_key UNIQUE (problem_id, unit, config, kernel, source_hash, silicon_id, toolchain_id, policy)
);
INSERT INTO "trials" VALUES(1,1,'megamoe','f00d',1,'little','gate_up','{"block_k":64,"block_m":64,"block_n":128,"num_warps":4,"swap_ab":false}',1,'NVIDIA H200',1,'graph8/1',3,10.25,10.0,10.5,1,'{"assumptions":[{"high":2.0,"low":0.5,"name":"l2","reason":"nobody says","unit":"TB/s","value":1.0}],"breakdown":[["bytes",10.0],["launch",2.5]],"facts":["h200.dram"],"time_us":12.5}','{"clock_mhz":1980,"launches_per_sample":1,"policy":"graph8/1","samples_us":[10.0,10.25,10.5]}',NULL,NULL,0.001);
INSERT INTO "trials" VALUES(2,1,'megamoe','f00d',1,'little','gate_up','{"block_k":64,"block_m":16,"block_n":128,"num_warps":4,"swap_ab":false}',1,'NVIDIA H200',1,'graph8/1',3,NULL,NULL,NULL,NULL,NULL,NULL,'compile_error','no registers left',NULL);
CREATE TABLE winners (
	id INTEGER NOT NULL, 
	sweep_id INTEGER NOT NULL, 
	kernel VARCHAR(100) NOT NULL, 
	source_hash VARCHAR(64) NOT NULL, 
	problem_id INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	unit VARCHAR(16) NOT NULL, 
	config TEXT NOT NULL, 
	silicon_id INTEGER NOT NULL, 
	silicon_name TEXT NOT NULL, 
	toolchain_id INTEGER NOT NULL, 
	policy VARCHAR(100) NOT NULL, 
	evidence SMALLINT NOT NULL, 
	time_us DOUBLE NOT NULL, 
	low_us DOUBLE NOT NULL, 
	high_us DOUBLE NOT NULL, 
	default_config TEXT NOT NULL, 
	default_time_us DOUBLE NOT NULL, 
	compile_id INTEGER, 
	parts TEXT NOT NULL, 
	CONSTRAINT pk_winners PRIMARY KEY (id), 
	CONSTRAINT fk_winners_compile_id FOREIGN KEY(compile_id) REFERENCES compiles (id), 
	CONSTRAINT fk_winners_problem_id FOREIGN KEY(problem_id) REFERENCES problems (id), 
	CONSTRAINT fk_winners_silicon_id FOREIGN KEY(silicon_id) REFERENCES silicons (id), 
	CONSTRAINT fk_winners_sweep_id FOREIGN KEY(sweep_id) REFERENCES sweeps (id), 
	CONSTRAINT fk_winners_toolchain_id FOREIGN KEY(toolchain_id) REFERENCES toolchains (id), 
	CONSTRAINT uq_winners_key UNIQUE (sweep_id, problem_id, unit)
);
INSERT INTO "winners" VALUES(1,1,'megamoe','f00d',1,'little','layer','{"block_k":64,"block_m":64,"block_n":128,"num_warps":4,"swap_ab":false}',1,'NVIDIA H200',1,'graph8/1',3,10.25,10.0,10.5,'{"block_k":64,"block_m":16,"block_n":128,"num_warps":4,"swap_ab":false}',20.5,1,'{"units":[["gate_up",{"block_k":64,"block_m":64,"block_n":128,"num_warps":4,"swap_ab":false}],["down",{"block_k":64,"block_m":64,"block_n":64,"num_warps":4,"swap_ab":false}]]}');
CREATE INDEX ix_compiles_cubin_sha256 ON compiles (cubin_sha256);
CREATE INDEX ix_sweeps_fingerprint ON sweeps (fingerprint);
CREATE INDEX ix_trials_sweep_id ON trials (sweep_id);
CREATE INDEX ix_winners_problem_id ON winners (problem_id, unit);
COMMIT;
