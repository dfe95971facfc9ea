-- {"at": 1795940002.3131795, "tasks": {"done": "f7af36b884e3ebf0782c4f47af3be9c0", "asks": "15f4a745d030fab26e23e764c9d53212", "again": "25cb7e3a2ab28badf104b93c6cd54a44", "runs": "35eac5fdd64ba76d828d0464272b4c64"}}
CREATE TABLE public.approval_rules (
    id text NOT NULL,
    principal text NOT NULL,
    source text NOT NULL,
    name text NOT NULL,
    arguments text NOT NULL,
    shown text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    made_by text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.asks (
    id text NOT NULL,
    kind text NOT NULL,
    source text NOT NULL,
    name text NOT NULL,
    principal text NOT NULL,
    shown text NOT NULL,
    state text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    form text DEFAULT ''::text NOT NULL,
    answer text DEFAULT ''::text NOT NULL,
    approver text DEFAULT 'operator'::text NOT NULL,
    decided_by text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.audit (
    id integer NOT NULL,
    at double precision NOT NULL,
    kind text NOT NULL,
    source text NOT NULL,
    name text NOT NULL,
    principal text NOT NULL,
    fields text NOT NULL,
    digest text NOT NULL
);
CREATE TABLE public.audit_chain (
    id integer NOT NULL,
    first integer NOT NULL,
    base text NOT NULL,
    last integer NOT NULL,
    head text NOT NULL,
    seal text NOT NULL
);
ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.checkpoints (
    seq integer NOT NULL,
    owner text NOT NULL,
    id text NOT NULL,
    workflow text NOT NULL,
    graph text NOT NULL,
    iteration integer NOT NULL,
    at double precision NOT NULL,
    form text NOT NULL
);
ALTER TABLE public.checkpoints ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.checkpoints_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.history (
    id integer NOT NULL,
    owner text NOT NULL,
    session text NOT NULL,
    messages text NOT NULL,
    at double precision NOT NULL
);
ALTER TABLE public.history ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.history_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.locks (
    name text NOT NULL
);
CREATE TABLE public.memories (
    id integer NOT NULL,
    owner text NOT NULL,
    collection text NOT NULL,
    text text NOT NULL,
    vector bytea NOT NULL,
    fields text NOT NULL,
    at double precision NOT NULL
);
ALTER TABLE public.memories ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.memories_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.sampling_use (
    id integer NOT NULL,
    server text NOT NULL,
    principal text NOT NULL,
    at double precision NOT NULL
);
ALTER TABLE public.sampling_use ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.sampling_use_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.schema_version (
    version integer NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.sessions (
    id text NOT NULL,
    principal text NOT NULL,
    agent text NOT NULL,
    state text NOT NULL,
    turns integer NOT NULL,
    bytes integer NOT NULL,
    created_at double precision NOT NULL,
    used_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    holder text NOT NULL,
    held_until double precision NOT NULL
);
CREATE TABLE public.spent_approvals (
    id text NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE public.task_owners (
    id text NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE public.task_starts (
    scope text NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.task_steps (
    task text NOT NULL,
    key text NOT NULL,
    is_done integer NOT NULL,
    value text NOT NULL
);
CREATE TABLE public.tasks (
    id text NOT NULL,
    principal text NOT NULL,
    tool text NOT NULL,
    call text NOT NULL,
    status text NOT NULL,
    message text NOT NULL,
    outcome text NOT NULL,
    asked text NOT NULL,
    ttl_seconds double precision NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    gone_at double precision NOT NULL,
    is_cancelled integer NOT NULL,
    attempts integer NOT NULL,
    owner text NOT NULL,
    limits text DEFAULT '[]'::text NOT NULL,
    admitted_at double precision DEFAULT 0 NOT NULL,
    request_key text DEFAULT ''::text NOT NULL
);
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (1, 1795939997.9678805, 'call.audited', 'workflow/flow', 'first', 'local', '{"outcome": "complete"}', '175b6863b5e61dc0b03e024fbb02b4e9c3c2f3d5ea9ab6435af55319454f6c2a');
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (2, 1795939997.9772952, 'call.audited', 'workflow/flow', 'second', 'local', '{"outcome": "complete"}', '49a1b2f9c5b0944ced7c70ebd3178c584598663cab27a0064ab762e652c5746c');
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (3, 1795939998.1733656, 'call.audited', 'workflow/flow', 'first', 'local', '{"outcome": "complete"}', '737812efec8fc983c30470733a4a42d5b07f80b2c193286f9b9fbc41bb1caedb');
INSERT INTO public.audit_chain VALUES (1, 1, '0000000000000000000000000000000000000000000000000000000000000000', 3, '737812efec8fc983c30470733a4a42d5b07f80b2c193286f9b9fbc41bb1caedb', '15dc4faa7a59ab5a856ca47fe49fe78c30df432e935b06a9faffb46c02e49895');
INSERT INTO public.locks VALUES ('audit');
INSERT INTO public.locks VALUES ('sampling');
INSERT INTO public.locks VALUES ('asks');
INSERT INTO public.locks VALUES ('tasks');
INSERT INTO public.schema_version VALUES (1, 1795939997.5694363);
INSERT INTO public.schema_version VALUES (2, 1795939997.6704953);
INSERT INTO public.schema_version VALUES (3, 1795939997.738522);
INSERT INTO public.schema_version VALUES (4, 1795939997.7571833);
INSERT INTO public.schema_version VALUES (5, 1795939997.7837377);
INSERT INTO public.schema_version VALUES (6, 1795939997.806455);
INSERT INTO public.schema_version VALUES (7, 1795939997.8088942);
INSERT INTO public.schema_version VALUES (8, 1795939997.8231804);
INSERT INTO public.schema_version VALUES (9, 1795939997.8275127);
INSERT INTO public.schema_version VALUES (10, 1795939997.8412733);
INSERT INTO public.task_owners VALUES ('96614e9971f54e9bb0cb6048', 1795940000.413415);
INSERT INTO public.task_owners VALUES ('c397a4e5f275e546ba8387b7', 1795940004.245338);
INSERT INTO public.task_steps VALUES ('15f4a745d030fab26e23e764c9d53212', '/workflow__flow:d77eabdbf48d#1/one@0.0/python#1', 1, '{"value": "asks1", "result": {"content": [{"type": "text", "text": "asks1"}]}}');
INSERT INTO public.task_steps VALUES ('15f4a745d030fab26e23e764c9d53212', 'kept:/workflow__flow:d77eabdbf48d#1/checkpoint', 1, '{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "a5efcf92-abe5-442d-9ca1-47cc5ff5155a", "previous_checkpoint_id": null, "timestamp": "2026-11-29T08:13:18.173618+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "asks1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null, "sent_in": {"$type": "tuple", "value": []}}}]}, "state": {"_workflow_run_kwargs": {}, "input": {"x": "asks"}, "output:one": "asks1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO public.task_steps VALUES ('15f4a745d030fab26e23e764c9d53212', '/workflow__flow:d77eabdbf48d#1/two@0.0/python#1', 0, 'null');
INSERT INTO public.task_steps VALUES ('25cb7e3a2ab28badf104b93c6cd54a44', '/workflow__flow:9734ddf3de29#1/one@0.0/python#1', 1, '{"value": "again1", "result": {"content": [{"type": "text", "text": "again1"}]}}');
INSERT INTO public.task_steps VALUES ('25cb7e3a2ab28badf104b93c6cd54a44', 'kept:/workflow__flow:9734ddf3de29#1/checkpoint', 1, '{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "61db6214-59b1-4ed1-8507-84e93b6c8b81", "previous_checkpoint_id": null, "timestamp": "2026-11-29T08:13:18.247426+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "again1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null, "sent_in": {"$type": "tuple", "value": []}}}]}, "state": {"_workflow_run_kwargs": {}, "input": {"x": "again"}, "output:one": "again1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO public.task_steps VALUES ('15f4a745d030fab26e23e764c9d53212', '/workflow__flow:d77eabdbf48d#1', 0, '0');
INSERT INTO public.task_steps VALUES ('25cb7e3a2ab28badf104b93c6cd54a44', '/workflow__flow:9734ddf3de29#1', 0, '0');
INSERT INTO public.task_steps VALUES ('25cb7e3a2ab28badf104b93c6cd54a44', '/workflow__flow:9734ddf3de29#1/two@0.0/python#1', 0, '1');
INSERT INTO public.task_steps VALUES ('35eac5fdd64ba76d828d0464272b4c64', '/workflow__flow:5dd2cd7a8307#1', 0, 'null');
INSERT INTO public.task_steps VALUES ('35eac5fdd64ba76d828d0464272b4c64', '/workflow__flow:5dd2cd7a8307#1/one@0.0/python#1', 1, '{"value": "runs1", "result": {"content": [{"type": "text", "text": "runs1"}]}}');
INSERT INTO public.task_steps VALUES ('35eac5fdd64ba76d828d0464272b4c64', '/workflow__flow:5dd2cd7a8307#1/two@0.0/python#1', 0, 'null');
INSERT INTO public.task_steps VALUES ('35eac5fdd64ba76d828d0464272b4c64', 'kept:/workflow__flow:5dd2cd7a8307#1/checkpoint', 1, '{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "75425f2b-5ba6-4820-b46d-241d099771ee", "previous_checkpoint_id": null, "timestamp": "2026-11-29T08:13:22.162729+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "runs1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null, "sent_in": {"$type": "tuple", "value": []}}}]}, "state": {"_workflow_run_kwargs": {}, "input": {"x": "runs"}, "output:one": "runs1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO public.tasks VALUES ('25cb7e3a2ab28badf104b93c6cd54a44', 'local', 'workflow__flow', '{"arguments": {"x": "again"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}', 'working', 'two started', '{}', '{"ask-1": {"request": {"method": "elicitation/create", "params": {"mode": "form", "message": "The gateway stopped while ''python'' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?", "requestedSchema": {"type": "object", "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}}, "required": ["outcome"]}}}, "at": 1795940001.9183207, "answer": {"action": "accept", "content": {"outcome": "retry"}}}}', 3600, 1795939998.2079165, 1795940002.0364084, 0, 0, 2, 'c397a4e5f275e546ba8387b7', '[{"scope": "caller:local", "running": 16, "perMinute": null}]', 1795939998.215668, '');
INSERT INTO public.tasks VALUES ('f7af36b884e3ebf0782c4f47af3be9c0', 'local', 'workflow__flow', '{"arguments": {"x": "done"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}', 'completed', 'one started', '{"result": {"content": [{"type": "text", "text": "done12"}]}}', '{}', 3600, 1795939997.7688305, 1795939997.9862328, 1795943597.9862328, 0, 1, '96614e9971f54e9bb0cb6048', '[{"scope": "caller:local", "running": 16, "perMinute": null}]', 1795939997.9233143, '');
INSERT INTO public.tasks VALUES ('35eac5fdd64ba76d828d0464272b4c64', 'local', 'workflow__flow', '{"arguments": {"x": "runs"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}', 'working', 'one started', '{}', '{}', 3600, 1795940002.1048565, 1795940002.1490965, 0, 0, 1, 'c397a4e5f275e546ba8387b7', '[{"scope": "caller:local", "running": 16, "perMinute": null}]', 1795940002.1263907, '');
INSERT INTO public.tasks VALUES ('15f4a745d030fab26e23e764c9d53212', 'local', 'workflow__flow', '{"arguments": {"x": "asks"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}', 'input_required', 'two started', '{}', '{"ask-1": {"request": {"method": "elicitation/create", "params": {"mode": "form", "message": "The gateway stopped while ''python'' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?", "requestedSchema": {"type": "object", "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}}, "required": ["outcome"]}}}, "at": 1795940001.857403}}', 3600, 1795939998.123354, 1795940001.8574154, 0, 0, 2, 'c397a4e5f275e546ba8387b7', '[{"scope": "caller:local", "running": 16, "perMinute": null}]', 1795939998.134461, '');
SELECT pg_catalog.setval('public.audit_id_seq', 3, true);
SELECT pg_catalog.setval('public.checkpoints_seq_seq', 1, false);
SELECT pg_catalog.setval('public.history_id_seq', 1, false);
SELECT pg_catalog.setval('public.memories_id_seq', 1, false);
SELECT pg_catalog.setval('public.sampling_use_id_seq', 1, false);
ALTER TABLE ONLY public.approval_rules
    ADD CONSTRAINT approval_rules_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.asks
    ADD CONSTRAINT asks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.audit_chain
    ADD CONSTRAINT audit_chain_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.locks
    ADD CONSTRAINT locks_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.memories
    ADD CONSTRAINT memories_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sampling_use
    ADD CONSTRAINT sampling_use_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.spent_approvals
    ADD CONSTRAINT spent_approvals_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.task_owners
    ADD CONSTRAINT task_owners_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.task_steps
    ADD CONSTRAINT task_steps_pkey PRIMARY KEY (task, key);
ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);
CREATE INDEX approval_rules_tool ON public.approval_rules USING btree (principal, source, name);
CREATE INDEX asks_principal ON public.asks USING btree (principal, state);
CREATE INDEX audit_at ON public.audit USING btree (at);
CREATE UNIQUE INDEX checkpoints_id ON public.checkpoints USING btree (owner, id);
CREATE INDEX checkpoints_workflow ON public.checkpoints USING btree (owner, workflow, at);
CREATE INDEX history_session ON public.history USING btree (owner, session, id);
CREATE INDEX memories_owner ON public.memories USING btree (owner, collection, id);
CREATE INDEX sampling_use_key ON public.sampling_use USING btree (server, principal, at);
CREATE INDEX sessions_expiry ON public.sessions USING btree (expires_at);
CREATE INDEX sessions_principal ON public.sessions USING btree (principal, used_at);
CREATE INDEX task_starts_at ON public.task_starts USING btree (at);
CREATE INDEX tasks_key ON public.tasks USING btree (principal, request_key);
CREATE INDEX tasks_open ON public.tasks USING btree (gone_at, owner);
CREATE INDEX tasks_principal ON public.tasks USING btree (principal, created_at);
